package gateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
)

// A lone gateway that was away finds every balance: the store could not be asked meanwhile, and begins anew for the clock
// alone. Nobody lends a hand.
func TestE3_LoneGatewayRestarted(t *testing.T) {
	server := buckettest.StartRedis(t)
	open := func() *bucket.Store {
		s, err := bucket.Open(bucket.Config{Addrs: []string{server.Addr}, Timeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const document = `schema: 1
policies:
  - {name: day, key: [user], algorithm: token_bucket, rate: 5/day, scope: region, on_failure: closed}
`
	first := run(t, testConfig(t, document, upstream(t).URL), open())
	for range 3 {
		first.get(t, "/", "X-API-Key", "key-a")
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	watcher := open()
	defer watcher.Close()
	eventually(t, "the store cannot be asked when nobody ticks", func() bool {
		_, err := watcher.Views(t.Context(), []bucket.Ref{{}})
		return err != nil
	})
	again := run(t, testConfig(t, document, upstream(t).URL), open())
	began := time.Now()
	eventually(t, "the store can be asked again", func() bool {
		return again.get(t, "/", "X-API-Key", "key-a").StatusCode == http.StatusOK
	})
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("recovered after %s, want at most 3 s", took)
	}
	if a := again.get(t, "/", "X-API-Key", "key-a"); a.StatusCode != http.StatusOK || !strings.Contains(a.Header.Get("RateLimit"), "r=0;") {
		t.Errorf("the last of 5: %d, RateLimit %s", a.StatusCode, a.Header.Get("RateLimit"))
	}
	if a := again.get(t, "/", "X-API-Key", "key-a"); a.StatusCode != http.StatusTooManyRequests {
		t.Errorf("the sixth: %d, want 429", a.StatusCode)
	}
}

func TestE4_ReadyNamesAServerThatEvicts(t *testing.T) {
	s := &fakeStore{take: admitAll, warnings: []string{"it evicts"}}
	g := run(t, testConfig(t, perUser, upstream(t).URL), s)
	if status, body := g.ready(t); status != http.StatusOK || !strings.Contains(body, "it evicts") {
		t.Errorf("/readyz = %d %s, want 200 that names the warning", status, body)
	}
}
