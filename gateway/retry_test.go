package gateway

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// model is a region's buckets by the rules of section 3, with a clock that the test moves.
type model struct {
	mu      sync.Mutex
	now     limit.Micros
	buckets map[limit.Key]*filled
}

type filled struct {
	level limit.Micro
	at    limit.Micros
}

func (m *model) set(now limit.Micros) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = now
}

// forget ends every denial from memory, whose clock is the real one and not the model's.
func (m *model) forget(g *Gateway) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.buckets {
		g.admitter.Filled(bucket.Announcement{Ref: bucket.Ref{Key: key}})
	}
}

func (m *model) take(r bucket.Request) (bucket.Verdict, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := r.Charges[0]
	b, known := m.buckets[c.Key]
	if !known {
		b = &filled{c.Part.Capacity.Micro(), m.now}
		m.buckets[c.Key] = b
	}
	level, took := c.Part.Refill(b.level, m.now-b.at)
	if lacks := c.Cost.Micro() - level; lacks > 0 {
		return bucket.Verdict{Outcome: bucket.Denied, States: []bucket.State{{
			Lacking: true, Level: level, PoolAge: -1, RetryIn: c.Part.TimeTo(lacks) - (m.now - b.at - took),
		}}}, nil
	}
	b.level, b.at = level-c.Cost.Micro(), b.at+took
	return bucket.Verdict{Outcome: bucket.Admitted, States: []bucket.State{{Level: b.level, PoolAge: -1}}}, nil
}

const six = `schema: 1
policies:
  - {name: six, key: [user], algorithm: token_bucket, rate: 30/min, burst: 6, scope: region, on_failure: closed}
`

// rate 30/min, burst 6: q = 6, X-RateLimit-Limit: 6, w = 12; and Retry-After keeps its word for 300 clients that were denied at
// once, each alone on its key: who waits as long as it was told is admitted. They are not all told the same.
func TestRetryAfterKeepsItsWord(t *testing.T) {
	const clients = 300
	m := &model{buckets: map[limit.Key]*filled{}}
	cfg := testConfig(t, six, upstream(t).URL)
	cfg.RetryJitter = 0.1
	g := run(t, cfg, &fakeStore{take: m.take})
	told := map[int][]int{} // by the seconds that they were told to wait
	for i := range clients {
		for range 6 {
			a := g.get(t, "/", "X-API-Key", "key-"+strconv.Itoa(i))
			if a.StatusCode != http.StatusOK || a.Header.Get("X-Ratelimit-Limit") != "6" || a.Header.Get("Ratelimit-Policy") != `"six";q=6;w=12` {
				t.Fatalf("status %d, headers %v, want 200, a limit of 6, q=6 and w=12", a.StatusCode, a.Header)
			}
		}
	}
	const denied = 400_000 // µs after the last one that was admitted
	m.set(denied)
	for i := range clients {
		a := g.get(t, "/", "X-API-Key", "key-"+strconv.Itoa(i))
		wait, err := strconv.Atoi(a.Header.Get("Retry-After"))
		if a.StatusCode != http.StatusTooManyRequests || err != nil || wait < 2 || wait > 3 {
			t.Fatalf("status %d, Retry-After %q, want 429 and the rest of a token's two seconds, or one more", a.StatusCode, a.Header.Get("Retry-After"))
		}
		told[wait] = append(told[wait], i)
	}
	kept := 0
	for _, wait := range []int{2, 3} {
		m.set(denied + limit.Micros(wait)*limit.MicrosPerSecond)
		m.forget(g.Gateway)
		for _, i := range told[wait] {
			if a := g.get(t, "/", "X-API-Key", "key-"+strconv.Itoa(i)); a.StatusCode == http.StatusOK {
				kept++
			}
		}
	}
	if kept != clients {
		t.Errorf("the word was kept for %d of %d", kept, clients)
	}
	if len(told) != 2 {
		t.Errorf("all were told the same: %v", told)
	}
}

// The same with the region's scripts and a real clock, for a few.
func TestRetryAfterKeepsItsWordAtTheStore(t *testing.T) {
	server, _ := region(t)
	cfg := testConfig(t, six, upstream(t).URL)
	cfg.RetryJitter = 0.1
	g := run(t, cfg, openStore(t, server))
	const clients = 10
	var kept atomic.Int64
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			key := fmt.Sprintf("key-%d", i)
			a := g.get(t, "/", "X-API-Key", key)
			for a.StatusCode == http.StatusOK {
				a = g.get(t, "/", "X-API-Key", key)
			}
			wait, err := strconv.Atoi(a.Header.Get("Retry-After"))
			if a.StatusCode != http.StatusTooManyRequests || err != nil {
				t.Errorf("client %d: status %d, Retry-After %q", i, a.StatusCode, a.Header.Get("Retry-After"))
				return
			}
			<-time.After(time.Duration(wait) * time.Second) // the wait is the promise
			if a = g.get(t, "/", "X-API-Key", key); a.StatusCode == http.StatusOK {
				kept.Add(1)
			}
		})
	}
	group.Wait()
	if kept.Load() != clients {
		t.Errorf("the word was kept for %d of %d", kept.Load(), clients)
	}
}
