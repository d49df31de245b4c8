package bucket_test

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/limit"
)

// parallel is how many callers a processor stands for: enough to keep the server busy on a small machine.
const parallel = 16

// BenchmarkTake is one take of one policy, scope region, over 1,000 keys, against a real server; compare it with
// BenchmarkRawEvalsha.
func BenchmarkTake(b *testing.B) {
	benchmarkTake(b, 1, bucket.Charge{
		Policy: "api-per-user", Cost: 1, Sealed: make([]byte, 48),
		Part: limit.Budget{Capacity: 1_000_000, Rate: 1_000_000 * limit.MicroPerToken},
	})
}

// BenchmarkTakeThree is one take of three policies.
func BenchmarkTakeThree(b *testing.B) {
	benchmarkTake(b, 3, bucket.Charge{
		Policy: "api-per-user", Cost: 1, Sealed: make([]byte, 48),
		Part: limit.Budget{Capacity: 1_000_000, Rate: 1_000_000 * limit.MicroPerToken},
	})
}

// BenchmarkTakeDenied is one take of a dry bucket of scope global.
func BenchmarkTakeDenied(b *testing.B) {
	benchmarkTake(b, 1, bucket.Charge{
		Policy: "api-per-user", Cost: 1, Sealed: make([]byte, 48), Leased: true, Pool: limit.Budget{Capacity: 10},
	})
}

func benchmarkTake(b *testing.B, policies int, charge bucket.Charge) {
	server := buckettest.StartRedis(b)
	store, err := bucket.Open(bucket.Config{Addrs: []string{server.Addr}, Timeout: 5 * time.Second, PoolSize: 64})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	ticking(b, store)
	var keys atomic.Uint64
	b.SetParallelism(parallel)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r := bucket.Request{Charges: make([]bucket.Charge, policies)}
			n := keys.Add(1) % 1000
			for i := range r.Charges {
				c := charge
				binary.BigEndian.PutUint64(c.Key[:], n)
				c.Key[15] = byte(i)
				c.Shard = c.Key.Shard(32)
				r.Charges[i] = c
			}
			if _, err := store.Take(b.Context(), r); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkRawEvalsha is the floor: EVALSHA of a script that reads the clock, against the same server in the same way.
func BenchmarkRawEvalsha(b *testing.B) {
	server := buckettest.StartRedis(b)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, Protocol: 2, PoolSize: 64, MaxRetries: -1, ContextTimeoutEnabled: true})
	defer client.Close()
	sha, err := client.ScriptLoad(b.Context(), "return {1, 2, 3, 4, 5, 6, 7, 8}").Result()
	if err != nil {
		b.Fatal(err)
	}
	b.SetParallelism(parallel)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := client.EvalSha(b.Context(), sha, []string{"key"}, 1, 2, 3).Err(); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
