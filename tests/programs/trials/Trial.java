import java.lang.reflect.Field;
import java.util.Random;
import sun.misc.Unsafe;

/** The same of a JVM: memory outside of its heap, as libraries for networks and storage take it; "own" leaks 3,000 bytes. */
public class Trial {
    static Unsafe memory;
    static final long[] cache = new long[20000];
    static final Random random = new Random(1);

    static long cached(int at) {
        return memory.allocateMemory(600 + at % 8 * 64);
    }

    static void leaked() {
        memory.allocateMemory(2984);
    }

    static void request(boolean leak) {
        int at = random.nextInt(cache.length);
        memory.freeMemory(cache[at]);
        cache[at] = cached(at);
        if (leak) leaked();
    }

    public static void main(String[] args) throws Exception {
        Field field = Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        memory = (Unsafe) field.get(null);
        for (int i = 0; i < cache.length; i++) cache[i] = cached(i);
        for (int i = 0; i < 40000; i++) request(false);
        System.out.println("ready");
        long start = System.nanoTime();
        for (long n = 0;;) {
            for (; n < (System.nanoTime() - start) / 1000000; n++) request(args[1].equals("own"));
            Thread.sleep(1);
        }
    }
}
