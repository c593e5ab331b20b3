package tidemark.delta;

import io.delta.storage.HDFSLogStore;
import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * A commit of Delta -> one file of a folder that machines mount, linked to its name only if there is none, so that of
 * two drivers exactly one wins a version (R5).
 *
 * <p>Delta's own log store for files asks whether the version is there, and then renames a file to its name, which on
 * a mounted folder replaces one that came in between: both drivers win, and the commit of one is gone. It is slow,
 * too: without Hadoop's native library, which pip's Spark lacks, each step starts a process, ten for a commit.
 */
public final class LinkedLogStore extends HadoopFileSystemLogStore {
    public LinkedLogStore(Configuration configuration) {
        super(configuration);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration) throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        if (!WholeFile.isOf(files)) {
            new HDFSLogStore(configuration).write(path, actions, overwrite, configuration);
            return;
        }
        StringBuilder text = new StringBuilder();
        while (actions.hasNext()) {
            text.append((String) actions.next()).append("\n");
        }
        WholeFile.put(files, path, text.toString().getBytes(StandardCharsets.UTF_8), overwrite.booleanValue());
    }

    /** Of a checkpoint, which Spark writes under its name unless it is told that others would see a part of it. */
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return Boolean.TRUE;
    }
}
