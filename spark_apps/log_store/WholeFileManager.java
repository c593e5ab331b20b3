package tidemark.delta;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * A version's checksum file -> one object of S3, or one file, put when it is closed.
 *
 * <p>Delta writes these files by Spark's manager of checkpoint files, whose way to make a file appear at once is to
 * write it aside and to rename it. S3 has no rename: each cost twenty requests, and a driver that died on the way left
 * a file in the log that nothing ever removes. For a file Hadoop starts ten processes.
 */
public final class WholeFileManager extends FileSystemBasedCheckpointFileManager {
    public WholeFileManager(Path path, Configuration configuration) {
        super(path, configuration);
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
        return new Whole(fs(), path, overwrite, new ByteArrayOutputStream());
    }

    private static final class Whole extends CheckpointFileManager.CancellableFSDataOutputStream {
        private final FileSystem files;
        private final Path path;
        private final boolean overwrite;
        private final ByteArrayOutputStream content;
        private boolean isOver;

        Whole(FileSystem files, Path path, boolean overwrite, ByteArrayOutputStream content) {
            super(content);
            this.files = files;
            this.path = path;
            this.overwrite = overwrite;
            this.content = content;
        }

        public void close() throws IOException {
            if (!isOver) {
                isOver = true;
                super.close();
                if (WholeFile.isOf(files)) {
                    WholeFile.put(files, path, content.toByteArray(), overwrite);
                } else {
                    ConditionalLogStore.put(files, path, content.toByteArray(), overwrite);
                }
            }
        }

        public void cancel() {
            isOver = true;
        }
    }
}
