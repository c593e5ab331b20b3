import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Debezium's embedded engine, as its documentation has it: `DebeziumToJson PROPERTIES CHANGES FILE [keys]`, one line per
 * change, with `keys` behind its key and a tab.
 */
public class DebeziumToJson {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (var reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            properties.load(reader);
        }
        long wanted = Long.parseLong(arguments[1]);
        boolean hasKeys = arguments.length > 3;
        long[] written = {0};
        CountDownLatch done = new CountDownLatch(1);
        try (BufferedWriter out = Files.newBufferedWriter(Path.of(arguments[2]))) {
            DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
                    .using(properties)
                    .using((success, message, error) -> {
                        if (!success) {
                            System.err.println(message);
                            if (error != null) {
                                error.printStackTrace();
                            }
                        }
                        done.countDown();
                    })
                    .notifying((records, committer) -> {
                        try {
                            for (ChangeEvent<String, String> record : records) {
                                if (record.value() != null && written[0] < wanted) {
                                    if (hasKeys) {
                                        out.write((record.key() == null ? "" : record.key()) + "\t");
                                    }
                                    out.write(record.value());
                                    out.newLine();
                                    written[0]++;
                                }
                                committer.markProcessed(record);
                            }
                            out.flush();
                            committer.markBatchFinished();
                        } catch (java.io.IOException failed) {
                            throw new java.io.UncheckedIOException(failed);
                        }
                        if (written[0] >= wanted) {
                            done.countDown();
                        }
                    })
                    .build();
            ExecutorService executor = Executors.newSingleThreadExecutor();
            executor.execute(engine);
            done.await();
            try {
                engine.close();
            } catch (IllegalStateException isClosed) {
                // An error has ended it.
            }
            executor.shutdown();
        }
        System.exit(written[0] >= wanted ? 0 : 1);
    }
}
