package gateway

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// rate 30/min, burst 6: q = 6, X-RateLimit-Limit: 6, w = 12; and Retry-After keeps its word for 300 clients at once, each alone
// on its key: who waits as long as it was told is admitted.
func TestRetryAfterKeepsItsWord(t *testing.T) {
	const document = `schema: 1
policies:
  - {name: six, key: [user], algorithm: token_bucket, rate: 30/min, burst: 6, scope: region, on_failure: closed}
`
	const clients = 300
	server, _ := region(t)
	cfg := testConfig(t, document, upstream(t).URL)
	cfg.RetryJitter = 0.1
	g := run(t, cfg, openStore(t, server))
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	get := func(i int) *answered {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr().String(), nil)
		if err != nil {
			t.Error(err)
			return nil
		}
		req.Header.Set("X-Api-Key", fmt.Sprintf("key-%d", i))
		res, err := client.Do(req)
		if err != nil {
			t.Error(err)
			return nil
		}
		_ = res.Body.Close()
		return &answered{res, nil}
	}
	var mu sync.Mutex
	waits := map[int]int{}
	var kept atomic.Int64
	one := func(i int) {
		for {
			res := get(i)
			if res == nil {
				return
			}
			if i == 0 && (res.Header.Get("X-Ratelimit-Limit") != "6" || res.Header.Get("Ratelimit-Policy") != `"six";q=6;w=12`) {
				t.Errorf("headers %v, want q=6, a limit of 6 and w=12", res.Header)
			}
			if res.StatusCode == http.StatusOK {
				continue
			}
			wait, err := strconv.Atoi(res.Header.Get("Retry-After"))
			if res.StatusCode != http.StatusTooManyRequests || err != nil || wait < 1 || wait > 4 {
				t.Errorf("client %d: status %d, Retry-After %q", i, res.StatusCode, res.Header.Get("Retry-After"))
				return
			}
			mu.Lock()
			waits[wait]++
			mu.Unlock()
			<-time.After(time.Duration(wait) * time.Second) // the wait is the promise
			if res = get(i); res != nil && res.StatusCode == http.StatusOK {
				kept.Add(1)
			} else if res != nil {
				t.Errorf("client %d waited %d s and got %d", i, wait, res.StatusCode)
			}
			return
		}
	}
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() { one(i) })
	}
	group.Wait()
	if kept.Load() != clients {
		t.Errorf("the word was kept for %d of %d", kept.Load(), clients)
	}
	if len(waits) < 2 {
		t.Errorf("all were told the same: %v", waits)
	}
}
