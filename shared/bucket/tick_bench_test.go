package bucket_test

import (
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
)

// BenchmarkTick is a look at 32 shards' clocks, as each process takes once a second; ticks that are old enough it writes, too.
// Compare it with BenchmarkTake, which is one request.
func BenchmarkTick(b *testing.B) {
	b.Run("single", func(b *testing.B) {
		benchmarkTick(b, bucket.Config{Addrs: []string{buckettest.StartRedis(b).Addr}})
	})
	b.Run("cluster of 3", func(b *testing.B) {
		benchmarkTick(b, bucket.Config{Mode: "cluster", Addrs: buckettest.StartCluster(b, 3, false).Addrs()})
	})
}

func benchmarkTick(b *testing.B, cfg bucket.Config) {
	cfg.Timeout = 5 * time.Second
	store, err := bucket.Open(cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	if err := buckettest.Poll(b.Context(), 10*time.Second, func() error { return store.Tick(b.Context(), 32) }); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := store.Tick(b.Context(), 32); err != nil {
			b.Fatal(err)
		}
	}
}
