package e2e_test

import (
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/annona-gateway/annona/e2e/cluster"
)

// BenchmarkGateway is the cost of limits: the same requests through the same gateway process, to a path that no policy matches
// (its proxy alone), and to paths with one policy of each scope that never runs dry.
func BenchmarkGateway(b *testing.B) {
	c := shared.cluster(b)
	for _, path := range []string{"/no-policy", "/bench-region", "/bench-global"} {
		b.Run(path[1:], func(b *testing.B) { throughGateway(b, c.Regions[0].Gateways[0], path) })
	}
}

// throughGateway sends b.N requests over a few connections and reports their rate and latency.
func throughGateway(b *testing.B, g *cluster.Gateway, path string) {
	var mu sync.Mutex
	var all []time.Duration
	b.SetParallelism(8)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var mine []time.Duration
		for pb.Next() {
			answer := cluster.Get(b.Context(), g, "eu", "key-0", path)
			if answer.Status != http.StatusOK {
				b.Errorf("%s: status %d, want 200", path, answer.Status)
				return
			}
			mine = append(mine, answer.Answered.Sub(answer.Sent))
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, mine...)
	})
	b.StopTimer()
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "req/s")
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
}
