package tidemark.delta;

import io.delta.storage.CloseableIterator;
import io.delta.storage.HadoopFileSystemLogStore;
import io.delta.storage.LineCloseableIterator;
import java.io.ByteArrayInputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.core.exception.SdkServiceException;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Response;
import software.amazon.awssdk.services.s3.model.S3Object;

/**
 * A commit of Delta -> one object of S3, put only if there is none (If-None-Match), so that of two drivers exactly one
 * wins a version, on whatever machines they run (R5).
 *
 * <p>An answer may be lost after the object was put. S3A then asks again, and is told that the object exists, as a
 * loser is. So every object carries an identifier of its writer, and whoever is refused, or told nothing, looks whose
 * object is there. If none is, the refusal was of two requests that met (409), and the object is put again. Delta's protocol, "Delta Log Entries"; Hadoop's S3A, "Conditional writes".
 *
 * <p>Written for Janino, which is part of Spark, so that whoever has Spark can build the jar without a JDK: no
 * lambdas, no inferred type arguments.
 */
public final class ConditionalLogStore extends HadoopFileSystemLogStore {
    private static final String WRITER = "tidemark-writer";
    private static final long BLOCK_BYTES = 32 * 1024 * 1024;
    private static final int PUTS = 5;
    private static final long PAUSE_MS = 100;

    public ConditionalLogStore(Configuration configuration) {
        super(configuration);
    }

    /** A commit, a checksum file, or where the last checkpoint is: nobody has to ask how long it is. */
    public CloseableIterator read(Path path, Configuration configuration) throws IOException {
        byte[] content = WholeObject.read(path.getFileSystem(configuration), path);
        return new LineCloseableIterator(
                new InputStreamReader(new ByteArrayInputStream(content), StandardCharsets.UTF_8));
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration) throws IOException {
        StringBuilder text = new StringBuilder();
        while (actions.hasNext()) {
            text.append((String) actions.next()).append("\n");
        }
        byte[] content = text.toString().getBytes(StandardCharsets.UTF_8);
        put(path.getFileSystem(configuration), path, content, overwrite.booleanValue());
    }

    /** From a version on, in the order of the names: S3 begins a listing anywhere, however long the log before is. */
    public Iterator listFrom(Path path, Configuration configuration) throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        if (files instanceof S3AFileSystem) {
            try {
                List listed = listed((S3AFileSystem) files, files.makeQualified(path));
                if (!listed.isEmpty()) {
                    return listed.iterator();
                }
            } catch (SdkException refused) {
                // S3A's own listing, below, asks again, and says in its own way what is wrong.
            }
        }
        return super.listFrom(path, configuration); // which tells a log without such a version from no log
    }

    private static List listed(S3AFileSystem files, Path first) throws IOException {
        String key = first.toUri().getPath().substring(1);
        S3Client client = files.getS3AInternals().getAmazonS3Client("a table's log from a version on");
        ListObjectsV2Request.Builder request = ListObjectsV2Request.builder();
        request.bucket(files.getBucket());
        request.prefix(key.substring(0, key.lastIndexOf('/') + 1));
        request.delimiter("/");
        int last = key.length() - 1; // the name itself would be left out
        request.startAfter(key.substring(0, last) + (char) (key.charAt(last) - 1));
        List listed = new ArrayList();
        while (true) {
            ListObjectsV2Response page = client.listObjectsV2((ListObjectsV2Request) request.build());
            for (Iterator objects = page.contents().iterator(); objects.hasNext();) {
                S3Object object = (S3Object) objects.next();
                Path path = new Path(first.getParent(), object.key().substring(key.lastIndexOf('/') + 1));
                long modified = object.lastModified().toEpochMilli();
                listed.add(new FileStatus(object.size().longValue(), false, 1, BLOCK_BYTES, modified, path));
            }
            if (!Boolean.TRUE.equals(page.isTruncated())) {
                return listed;
            }
            request.continuationToken(page.nextContinuationToken());
        }
    }

    /** An object is never seen in part: closing the stream publishes it. */
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return Boolean.FALSE;
    }

    /** The whole object, and unless it may be overwritten only if there is none: else FileAlreadyExistsException. */
    static void put(FileSystem files, Path path, byte[] content, boolean overwrite) throws IOException {
        String writer = UUID.randomUUID().toString();
        for (int tried = 1;; tried++) {
            try {
                putOnce(files, path, content, overwrite, writer);
                return;
            } catch (IOException refused) {
                if (overwrite) {
                    throw refused;
                }
                String there = writerOf(files, path, refused);
                if (writer.equals(there)) {
                    return;
                }
                if (there != null) {
                    throw (IOException) new FileAlreadyExistsException(path.toString()).initCause(refused);
                }
                if (tried == PUTS || !isConflict(refused)) {
                    throw refused;
                }
            }
            pause(PAUSE_MS << tried);
        }
    }

    /**
     * Whether another request for the same name was under way: what came of that one is not there, and S3 wants to be
     * asked again, which neither its client nor S3A does.
     */
    private static boolean isConflict(Throwable refused) {
        for (Throwable cause = refused; cause != null; cause = cause.getCause()) {
            if (cause instanceof SdkServiceException && ((SdkServiceException) cause).statusCode() == 409) {
                return true;
            }
        }
        return false;
    }

    private static void pause(long milliseconds) throws IOException {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException ended) {
            throw (IOException) new InterruptedIOException().initCause(ended);
        }
    }

    private static void putOnce(FileSystem files, Path path, byte[] content, boolean overwrite, String writer)
            throws IOException {
        FSDataOutputStreamBuilder builder = files.createFile(path).overwrite(true).recursive();
        builder.opt("fs.s3a.create.performance", true);
        if (!overwrite) {
            // "must": a file system that does not know it refuses, rather than overwrite.
            builder.must("fs.option.create.conditional.overwrite", true);
            builder.opt("fs.s3a.create.header." + WRITER, writer);
        }
        FSDataOutputStream stream = (FSDataOutputStream) builder.build();
        try {
            stream.write(content);
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
