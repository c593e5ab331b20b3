package tidemark.delta;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * A commit of Delta -> one object of S3, put only if there is none (If-None-Match), so that of two drivers exactly one
 * wins a version, on whatever machines they run (R5).
 *
 * <p>An answer may be lost after the object was put. S3A then asks again, and is told that the object exists, as a
 * loser is. So every object carries an identifier of its writer, and whoever is refused, or told nothing, looks whose
 * object is there. Delta's protocol, "Delta Log Entries"; Hadoop's S3A, "Conditional writes".
 *
 * <p>Written for Janino, which is part of Spark, so that whoever has Spark can build the jar without a JDK: no
 * lambdas, no inferred type arguments.
 */
public final class ConditionalLogStore extends HadoopFileSystemLogStore {
    private static final String WRITER = "tidemark-writer";

    public ConditionalLogStore(Configuration configuration) {
        super(configuration);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration) throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        String writer = UUID.randomUUID().toString();
        try {
            put(files, path, actions, overwrite.booleanValue(), writer);
        } catch (IOException refused) {
            if (overwrite.booleanValue()) {
                throw refused;
            }
            String there = writerOf(files, path, refused);
            if (there == null) {
                throw refused;
            }
            if (!there.equals(writer)) {
                throw (IOException) new FileAlreadyExistsException(path.toString()).initCause(refused);
            }
        }
    }

    /** An object is never seen in part: closing the stream publishes it. */
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return Boolean.FALSE;
    }

    private static void put(FileSystem files, Path path, Iterator actions, boolean overwrite, String writer)
            throws IOException {
        FSDataOutputStreamBuilder builder = files.createFile(path).overwrite(true).recursive();
        builder.opt("fs.s3a.create.performance", true);
        if (!overwrite) {
            // "must": a file system that does not know it refuses, rather than overwrite.
            builder.must("fs.option.create.conditional.overwrite", true);
            builder.opt("fs.s3a.create.header." + WRITER, writer);
        }
        StringBuilder text = new StringBuilder();
        while (actions.hasNext()) {
            text.append((String) actions.next()).append("\n");
        }
        FSDataOutputStream stream = (FSDataOutputStream) builder.build();
        try {
            stream.write(text.toString().getBytes(StandardCharsets.UTF_8));
        } catch (IOException unwritten) {
            stream.abort(); // closing it would publish the part that was written
            throw unwritten;
        }
        stream.close();
    }

    /** Who wrote the object that is there: "" where it does not say, null where there is none or it cannot be asked. */
    private static String writerOf(FileSystem files, Path path, IOException refused) {
        try {
            byte[] found = (byte[]) files.getXAttrs(path).get("header." + WRITER);
            return found == null ? "" : new String(found, StandardCharsets.UTF_8);
        } catch (FileNotFoundException none) {
            return null;
        } catch (IOException unknown) {
            refused.addSuppressed(unknown);
            return null;
        }
    }
}
