package tidemark.delta;

import io.delta.storage.HDFSLogStore;
import io.delta.storage.HadoopFileSystemLogStore;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Iterator;
import java.util.NoSuchElementException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
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

    /**
     * The log's files from a version on, by their names alone. Hadoop reads the status of every file of the log for it,
     * and a log that gets a commit every few seconds has hundred thousands of them. The status of a file is read when
     * its turn comes: Delta's clean-up stops at the first file that stays.
     */
    public Iterator listFrom(Path path, Configuration configuration) throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        Path folder = path.getParent();
        String[] names = WholeFile.isOf(files) ? new File(folder.toUri().getPath()).list() : null;
        if (names == null) {
            return super.listFrom(path, configuration); // which says what is wrong
        }
        int count = 0;
        for (int n = 0; n < names.length; n++) {
            if (names[n].compareTo(path.getName()) >= 0 && !isChecksum(names[n])) {
                names[count++] = names[n];
            }
        }
        Arrays.sort(names, 0, count);
        return new Listed(files, folder, names, count);
    }

    /** Hadoop's own, of a file that it wrote; its listings leave them out, too. */
    private static boolean isChecksum(String name) {
        return name.startsWith(".") && name.endsWith(".crc");
    }

    private static final class Listed implements Iterator {
        private final FileSystem files;
        private final Path folder;
        private final String[] names;
        private final int count;
        private int at;
        private FileStatus next;

        Listed(FileSystem files, Path folder, String[] names, int count) {
            this.files = files;
            this.folder = folder;
            this.names = names;
            this.count = count;
        }

        public boolean hasNext() {
            while (next == null && at < count) {
                try {
                    next = files.getFileStatus(new Path(folder, names[at++]));
                } catch (FileNotFoundException removed) {
                    // since its name was listed
                } catch (IOException failed) {
                    throw new UncheckedIOException(failed);
                }
            }
            return next != null;
        }

        public Object next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            FileStatus status = next;
            next = null;
            return status;
        }

        public void remove() {
            throw new UnsupportedOperationException();
        }
    }

    /** Of a checkpoint, which Spark writes under its name unless it is told that others would see a part of it. */
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return Boolean.TRUE;
    }
}
