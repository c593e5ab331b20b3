package tidemark.delta;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.CopyOption;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.UUID;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * A small file of a folder that this machine mounts, seen whole or not at all: written aside, then linked to its name,
 * which of any number of writers, on whatever machines, exactly one can do.
 */
final class WholeFile {
    private WholeFile() {
    }

    /** Whether these are files of the machine's own. */
    static boolean isOf(FileSystem files) {
        return files instanceof LocalFileSystem || files instanceof RawLocalFileSystem;
    }

    /** The whole file, and unless it may be overwritten only if there is none: else FileAlreadyExistsException. */
    static void put(FileSystem files, org.apache.hadoop.fs.Path path, byte[] content, boolean overwrite)
            throws IOException {
        Path file = Paths.get(path.toUri().getPath(), new String[0]);
        if (!overwrite && Files.exists(file, new LinkOption[0])) {
            throw new FileAlreadyExistsException(file.toString());
        }
        String name = file.getFileName().toString();
        Path aside = file.resolveSibling("." + name + "." + UUID.randomUUID() + ".tmp");
        try {
            Files.write(aside, content, new OpenOption[] {StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE});
            share(files, aside);
            // Where Hadoop wrote the name before, it keeps a checksum of that content, and a reader compares.
            Files.deleteIfExists(file.resolveSibling("." + name + ".crc"));
            if (overwrite) {
                Files.move(aside, file, new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
            } else {
                link(aside, file);
            }
        } catch (NoSuchFileException noFolder) {
            throw (IOException) new FileNotFoundException(file.toString()).initCause(noFolder); // as Hadoop calls it
        } catch (AccessDeniedException noRight) {
            throw new IOException(noRight.toString()); // by its own name it would be an object store's answer
        } finally {
            Files.deleteIfExists(aside);
        }
    }

    /** With whom Hadoop shares each file that it writes, whatever this process shares by itself. */
    private static void share(FileSystem files, Path aside) throws IOException {
        FsPermission shared = FsPermission.getFileDefault().applyUMask(FsPermission.getUMask(files.getConf()));
        try {
            Files.setPosixFilePermissions(aside, PosixFilePermissions.fromString(shared.toString()));
        } catch (UnsupportedOperationException none) {
            // a file system without permissions
        }
    }

    private static void link(Path aside, Path file) throws IOException {
        try {
            Files.createLink(file, aside);
        } catch (FileAlreadyExistsException refused) {
            // A file server whose answer was lost is asked again, and refuses what it did: then both are one file.
            if (!Files.isSameFile(file, aside)) {
                throw refused;
            }
        } catch (NoSuchFileException noFolder) {
            throw noFolder;
        } catch (AccessDeniedException noRight) {
            throw noRight;
        } catch (FileSystemException noLinks) {
            // A file system without hard links cannot refuse a second name: there it is looked for.
            Files.move(aside, file, new CopyOption[0]);
        } catch (UnsupportedOperationException noLinks) {
            Files.move(aside, file, new CopyOption[0]);
        }
    }
}
