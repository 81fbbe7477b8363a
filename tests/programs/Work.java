import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.zip.CRC32;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

/** Work for a JVM that is attached to: memory on its heap and outside of it, checked, until "stop". */
public class Work {
    static volatile boolean stop;
    static volatile int wrong;
    static volatile long rounds;

    static long sum(byte[] bytes) {
        CRC32 crc = new CRC32();
        crc.update(bytes);
        return crc.getValue();
    }

    static void work(int seed) {
        byte[][] kept = new byte[200][];
        long[] sums = new long[200];
        int n = seed;
        while (!stop) {
            n = n * 1103515245 + 12345;
            int i = (n >>> 8) % 200;
            if (kept[i] != null && sum(kept[i]) != sums[i]) wrong++;
            byte[] b = new byte[(n >>> 4) % 5000 + 1];
            Arrays.fill(b, (byte) n);
            kept[i] = b;
            sums[i] = sum(b);
            // These allocate outside of the heap, with malloc.
            if ((n >>> 16) % 50 == 0) {
                Deflater d = new Deflater();
                d.setInput(b);
                d.finish();
                byte[] packed = new byte[b.length + 100];
                int len = d.deflate(packed);
                d.end();
                Inflater f = new Inflater();
                f.setInput(packed, 0, len);
                byte[] back = new byte[b.length];
                try {
                    if (f.inflate(back) != b.length || !Arrays.equals(back, b)) wrong++;
                } catch (Exception e) {
                    wrong++;
                }
                f.end();
            }
            rounds++;
        }
    }

    public static void main(String[] args) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            int seed = i;
            Thread t = new Thread(() -> work(seed));
            t.start();
            threads.add(t);
        }
        System.out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            if (line.equals("stop")) {
                stop = true;
                for (Thread t : threads) t.join();
                System.out.println((wrong == 0 ? "done OK " : "done FAILED ") + rounds);
            }
            if (line.equals("quit")) return;
        }
    }
}
