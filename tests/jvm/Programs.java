import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs programs in one JVM, one after the other, each as if it were the only one. A line of the
 * standard input asks for one: [program, its standard input, arguments...] in JSON. The line that
 * answers is [exit code, standard output, standard error].
 */
public class Programs {
    static final List<Runnable> AT_EXIT = new ArrayList<>();
    static Integer exitCode;  // the first that the program asked to end with

    static class Ended extends Error {
    }

    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader asked =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        ByteArrayOutputStream out = new ByteArrayOutputStream(), err = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure(Programs::end);
        Exit.setHaltProcedure(Programs::end);
        Exit.setShutdownHookAdder((name, hook) -> AT_EXIT.add(hook));
        for (String line; (line = asked.readLine()) != null; ) {
            String[] words = json.readValue(line, String[].class);
            System.setIn(new ByteArrayInputStream(words[1].getBytes(StandardCharsets.UTF_8)));
            int code = run(words[0], Arrays.copyOfRange(words, 2, words.length));
            String told = out.toString(StandardCharsets.UTF_8);
            String complained = err.toString(StandardCharsets.UTF_8);
            answers.println(json.writeValueAsString(List.of(code, told, complained)));
            out.reset();
            err.reset();
        }
        System.exit(0);  // though a program left threads
    }

    static void end(int code, String message) {
        if (exitCode == null) {
            exitCode = code;
        }
        throw new Ended();
    }

    static int run(String program, String[] arguments) throws ReflectiveOperationException {
        exitCode = null;
        int code = 0;
        try {
            Class.forName(program).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (exitCode == null) {
                thrown.getCause().printStackTrace();
                code = 1;
            }
        }
        AT_EXIT.forEach(Runnable::run);
        AT_EXIT.clear();
        return exitCode == null ? code : exitCode;
    }
}
