package gateway

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// metrics is what an operator scrapes.
func (r *running) metrics(t *testing.T) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.AdminAddr().String()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(r.do(t, req).body)
}

// However a request ends, its line leads to its trace, and neither the log nor the metrics have anything of its client: no
// credential, no user, no address, no path, no query, no header.
func TestCase15_LogsAndMetricsKnowNoClients(t *testing.T) {
	verdicts := map[string]func(bucket.Request) (bucket.Verdict, error){
		"429": func(bucket.Request) (bucket.Verdict, error) {
			return bucket.Verdict{Outcome: bucket.Denied, States: []bucket.State{{Lacking: true, PoolAge: -1, RetryIn: limit.MicrosPerSecond}}}, nil
		},
		"503": func(bucket.Request) (bucket.Verdict, error) { return bucket.Verdict{}, bucket.ErrCouldNotAsk },
	}
	secrets := []string{"sesame", "198.51.100.7", "orders"}
	for name, row := range map[string]struct {
		key, up string
		take    func(bucket.Request) (bucket.Verdict, error)
	}{
		"200": {"key-sesame", "", admitAll},
		"401": {"sesame", "", admitAll},
		"429": {"key-sesame", "", verdicts["429"]},
		"502": {"key-sesame", "http://127.0.0.1:1", admitAll},
		"503": {"key-sesame", "", verdicts["503"]},
	} {
		t.Run(name, func(t *testing.T) {
			if row.up == "" {
				row.up = upstream(t).URL
			}
			g := run(t, testConfig(t, perUser, row.up), &fakeStore{take: row.take})
			a := g.get(t, "/sesame/orders?token=sesame", "X-API-Key", row.key, "Authorization", "Bearer sesame", "Cookie", "sesame",
				"User-Agent", "sesame", "X-Forwarded-For", "198.51.100.7", "Referer", "https://sesame", "Origin", "https://sesame")
			if got := strconv.Itoa(a.StatusCode); got != name {
				t.Fatalf("status %s: %s", got, a.body)
			}
			line := ""
			eventually(t, "the request is in the log", func() bool {
				for l := range strings.Lines(g.log.String()) {
					if strings.Contains(l, `"msg":"request"`) {
						line = l
					}
				}
				return line != ""
			})
			if !strings.Contains(line, `"trace_id":"`) || !strings.Contains(line, `"status":`+name) {
				t.Errorf("the line leads to no trace: %s", line)
			}
			if a.StatusCode >= http.StatusBadRequest && !strings.Contains(line, `"trace_id":"`+a.problem(t).TraceID) {
				t.Errorf("client and log are told different traces: %s, %s", a.body, line)
			}
			metrics := g.metrics(t)
			for _, secret := range secrets {
				if strings.Contains(g.log.String(), secret) || strings.Contains(metrics, secret) {
					t.Errorf("%q stands in the log or the metrics:\n%s", secret, g.log.String())
				}
			}
		})
	}
}

// Clients are no labels: a hundred of them make no more series than one.
func TestCase15_SeriesDoNotGrowWithClients(t *testing.T) {
	g := run(t, testConfig(t, perUser, upstream(t).URL), &fakeStore{take: admitAll})
	series := func(clients int) int {
		t.Helper()
		for i := range clients {
			g.get(t, "/"+strconv.Itoa(i), "X-API-Key", "key-"+strconv.Itoa(i), "X-Forwarded-For", "198.51.100."+strconv.Itoa(i))
		}
		return strings.Count(g.metrics(t), "\nannona_")
	}
	if one, many := series(1), series(100); one == 0 || many != one {
		t.Errorf("%d series for one client, %d for a hundred", one, many)
	}
}

func TestAccessLogOff(t *testing.T) {
	cfg := testConfig(t, perUser, upstream(t).URL)
	cfg.AccessLog = off
	g := run(t, cfg, &fakeStore{take: admitAll})
	g.get(t, "/", "X-API-Key", "key-a")
	if err := g.stop(); err != nil { // after which every line that there will be is there
		t.Fatal(err)
	}
	if strings.Contains(g.log.String(), `"msg":"request"`) {
		t.Errorf("access_log: off, and the log has\n%s", g.log.String())
	}
}
