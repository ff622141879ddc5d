-- The ten worst hours by origin: at least ten departures, by mean delay in minutes.
SELECT key AS origin, date_format(window_start, 'yyyy-MM-dd HH:mm') AS hour_utc,
       flights, mean_delay, worst
FROM delays_by_origin
WHERE flights >= 10
ORDER BY mean_delay DESC, origin, hour_utc
LIMIT 10
