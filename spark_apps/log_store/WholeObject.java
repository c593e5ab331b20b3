package tidemark.delta;

import java.io.FileNotFoundException;
import java.io.IOException;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.GetObjectRequest;
import software.amazon.awssdk.services.s3.model.NoSuchKeyException;

/**
 * A small object of S3, or a piece of one, by one request: S3A asks for length and ETag of whatever it opens before it
 * reads, also where both are known, and its stream does not go on where an answer breaks off. Here the client asks
 * again by itself, for the whole.
 */
public final class WholeObject {
    private WholeObject() {
    }

    /** All of it. */
    public static byte[] read(FileSystem files, Path path) throws IOException {
        if (files instanceof S3AFileSystem) {
            try {
                return got((S3AFileSystem) files, path, null);
            } catch (SdkException refused) {
                // S3A, below, asks again, and says in its own way what is wrong.
            }
        }
        FSDataInputStream stream = files.open(path);
        try {
            return stream.readAllBytes();
        } finally {
            stream.close();
        }
    }

    /** So many bytes from a position on; the object has them. */
    public static byte[] read(FileSystem files, Path path, long from, int size) throws IOException {
        if (files instanceof S3AFileSystem) {
            try {
                return got((S3AFileSystem) files, path, "bytes=" + from + "-" + (from + size - 1));
            } catch (SdkException refused) {
                // as above
            }
        }
        byte[] content = new byte[size];
        FSDataInputStream stream = files.open(path);
        try {
            stream.readFully(from, content);
        } finally {
            stream.close();
        }
        return content;
    }

    private static byte[] got(S3AFileSystem files, Path path, String range) throws IOException {
        S3Client client = files.getS3AInternals().getAmazonS3Client("a small object as a whole");
        GetObjectRequest.Builder request = files.getRequestFactory().newGetObjectRequestBuilder(files.pathToKey(path));
        if (range != null) {
            request.range(range);
        }
        try {
            return client.getObjectAsBytes((GetObjectRequest) request.build()).asByteArrayUnsafe();
        } catch (NoSuchKeyException none) {
            throw new FileNotFoundException(path.toString());
        }
    }
}
