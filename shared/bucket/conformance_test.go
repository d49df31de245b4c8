package bucket_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
)

// openStore opens a store that no slow machine times out.
func openStore(t testing.TB, cfg bucket.Config) *bucket.Store {
	t.Helper()
	cfg.Timeout = 10 * time.Second
	store, err := bucket.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func miniHarness(t *testing.T) buckettest.Harness {
	t.Helper()
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	store := openStore(t, bucket.Config{Addrs: []string{server.Addr()}, ServerID: "embedded"})
	return buckettest.Harness{Store: store, Addr: server.Addr(), SetTime: server.SetTime}
}

func TestConformanceMiniredis(t *testing.T) { buckettest.Run(t, miniHarness) }

func TestConformanceRedis(t *testing.T) {
	server := buckettest.StartRedis(t)
	buckettest.Run(t, func(t *testing.T) buckettest.Harness {
		t.Helper()
		return buckettest.Harness{Store: openStore(t, bucket.Config{Addrs: []string{server.Addr}}), Addr: server.Addr}
	})
}

func TestConformanceCluster(t *testing.T) {
	cluster := buckettest.StartCluster(t, 3, false)
	buckettest.Run(t, func(t *testing.T) buckettest.Harness {
		t.Helper()
		return buckettest.Harness{Store: openStore(t, bucket.Config{Mode: "cluster", Addrs: cluster.Addrs()[:1]}), Cluster: cluster}
	})
}
