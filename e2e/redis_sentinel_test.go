package e2e_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/annona-gateway/annona/e2e/cluster"
	"github.com/annona-gateway/annona/e2e/oracle"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
)

// Five processes: the master dies under load and the sentinels promote its replica. Drained buckets admit nothing, a loaded one no
// more than its limit; the gateways stay ready and serve again within 5 s of the promotion, with nobody's help.
func TestRedisSentinelFailover(t *testing.T) {
	redis := buckettest.StartSentinels(t)
	section := fmt.Sprintf("mode: sentinel, addrs: %s, master: %s", list(redis.Addrs()), buckettest.Master)
	gateways := aloneOn(t, section)
	served(t, gateways)
	drained := []string{"key-1", "key-2"}
	for _, key := range drained {
		drain(t, gateways[0], key)
	}
	stop := unready(t, gateways)
	const duration = 8 * time.Second
	targets := append(loads(gateways, "/three", 20, drained...), loads(gateways, "/load", 60, "key-10")...)
	recovered := make(chan time.Duration, 1)
	time.AfterFunc(time.Second, func() {
		redis.Master.Kill()
		redis.Promoted()
		promoted := time.Now()
		cluster.Becomes(20*time.Second, func() bool {
			return cluster.Get(t.Context(), gateways[0], "eu", "key-20", "/both").Status == http.StatusOK
		})
		recovered <- time.Since(promoted)
	})
	answers := cluster.Run(t.Context(), targets, duration)
	if took := <-recovered; took > 5*time.Second {
		t.Errorf("served again %s after the promotion, want within 5 s", took)
	}
	for _, key := range drained {
		if n := len(oracle.Admitted(answers[key])); n > 0 {
			t.Errorf("%d admitted from the drained bucket of %s, want none", n, key)
		}
	}
	// A replica that is promoted lacks the last moment's writes, which a bucket of scope region then admits again.
	if err := oracle.Bound(answers["key-10"], 100+10, 50); err != nil {
		t.Error(err)
	}
	if n := oracle.Count(answers["key-10"], http.StatusInternalServerError); n > 0 {
		t.Errorf("%d answers with status 500", n)
	}
	served(t, gateways)
	if n := stop(); n > 0 {
		t.Errorf("a gateway was not ready %d times", n)
	}
}
