package admit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// answers is a take that the server answered with an error.
func answers(text string) func(int, bucket.Request) (bucket.Verdict, error) {
	return func(int, bucket.Request) (bucket.Verdict, error) {
		return bucket.Verdict{}, fmt.Errorf("%w: take: %w", bucket.ErrCouldNotAsk, replied{errors.New(text)})
	}
}

const within = " script: f3b1, on @user_script:12."

// Case 5: an error of the server's, or of the script's, is the policy's failure mode, a metric and one line in the log that
// says what to do, and probes hear of it.
func TestCase05_ScriptErrorIsToldAndDecided(t *testing.T) {
	for reason, text := range map[string]string{
		"OOM":       "OOM command not allowed when used memory > 'maxmemory'." + within,
		"WRONGTYPE": "WRONGTYPE Operation against a key holding the wrong kind of value" + within,
		"NOPERM":    "NOPERM this user has no permissions to run the 'evalsha' command",
		"READONLY":  "READONLY You can't write against a read only replica." + within,
		"other":     "ERR user_script:7: attempt to index nil" + within,
	} {
		t.Run(reason, func(t *testing.T) {
			for mode, want := range map[string]admit.Answer{"closed": admit.Refused, "{redis: open}": admit.Admitted} {
				var log bytes.Buffer
				b := newBench(t, answers(text), rule("p", "region", mode, ""))
				b.tel = telemetry.ForTest(&log)
				a := admit.New(b.taker, admit.Options{Region: "eu", Telemetry: b.tel})
				a.Use(b.Snapshot())
				b.Admitter = a
				for range 100 {
					if d := b.decide(t.Context(), t); d.Answer != want {
						t.Fatalf("%s: %v, want %v", mode, d.Answer, want)
					}
				}
				if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), `"remedy":`) ||
					!strings.Contains(log.String(), `"reason":"`+reason+`"`) {
					t.Errorf("log = %s, want one line with reason and remedy", log.String())
				}
				if !b.counted("annona_store_errors", `reason="`+reason+`"`, " 100") || !b.counted("annona_degraded", `dependency="redis"`) {
					t.Errorf("not metered:\n%s", b.metrics())
				}
				if got := a.Trouble(); !strings.Contains(got, text[:20]) {
					t.Errorf("Trouble() = %q, want the server's words", got)
				}
			}
		})
	}
}

// What passes is forgotten, and is told again when it is back; silence is the breaker's to tell, and a client that left is none.
func TestTroublePasses(t *testing.T) {
	var log bytes.Buffer
	tel := telemetry.ForTest(&log)
	b := newBench(t, answers("OOM no room"), rule("p", "region", "closed", ""))
	a := admit.New(b.taker, admit.Options{Region: "eu", Telemetry: tel})
	a.Use(b.Snapshot())
	b.Admitter = a
	synctest.Test(t, func(t *testing.T) {
		left, leave := context.WithCancel(t.Context())
		leave()
		b.decide(left, t)
		if got := a.Trouble(); got != "" {
			t.Errorf("a client that left is trouble: %q", got)
		}
		b.decide(t.Context(), t)
		pass(9 * time.Second)
		if a.Trouble() == "" {
			t.Error("after 9 s it is forgotten")
		}
		pass(2 * time.Second)
		if got := a.Trouble(); got != "" {
			t.Errorf("after 11 s it is still told: %q", got)
		}
		b.decide(t.Context(), t)
		pass(20 * time.Second)
		b.decide(t.Context(), t)
	})
	if lines := strings.Count(log.String(), "\n"); lines != 2 {
		t.Errorf("%d lines, want one at the beginning and one half a minute later:\n%s", lines, log.String())
	}
	silent := newBench(t, gone, rule("p", "region", "closed", ""))
	silent.decide(t.Context(), t)
	if got := silent.Trouble(); got != "" || !silent.counted("annona_store_errors", `reason="silent"`) {
		t.Errorf("silence: Trouble() = %q, want it counted and no more", got)
	}
}

// E5, E7: a store that nobody vouches for charged nothing.
func TestE7_LocalDecidesWhereNothingRan(t *testing.T) {
	notRun := fmt.Errorf("%w: take: %w: no tick", bucket.ErrCouldNotAsk, bucket.ErrNotRun)
	b := newBench(t, func(int, bucket.Request) (bucket.Verdict, error) { return bucket.Verdict{}, notRun }, rule("p", "region", "{redis: local}", ""))
	b.SetGateways(1)
	if d := b.decide(t.Context(), t); d.Answer != admit.Denied || d.Degraded != admit.DegradedRedis {
		t.Errorf("%v, degraded %q, want a local denial", d.Answer, d.Degraded)
	}
}

// E5, E7: what the server surely did not charge is decided locally, denials included; a script that broke half way is not denied.
func TestE7_LocalDecidesWhatWasSurelyNotCharged(t *testing.T) {
	for text, empty := range map[string]admit.Answer{
		"OOM command not allowed" + within:                             admit.Denied,
		"MISCONF Redis is configured to save RDB snapshots" + within:   admit.Denied,
		"READONLY You can't write against a read only replica":         admit.Denied,
		"WRONGTYPE Operation against a key" + within:                   admit.Denied,
		"LOADING Redis is loading the dataset in memory":               admit.Denied,
		"NOPERM this user has no permissions to run 'evalsha'":         admit.Denied,
		"NOPERM the user executing the script can't run" + within:      admit.Refused,
		"ERR user_script:99: attempt to compare nil with nil" + within: admit.Refused,
	} {
		b := newBench(t, answers(text), rule("p", "region", "{redis: local}", ""))
		synctest.Test(t, func(t *testing.T) {
			b.SetGateways(1)
			d := b.decide(t.Context(), t)
			if d.Answer != empty || (d.Answer == admit.Denied && d.Degraded != admit.DegradedRedis) {
				t.Errorf("%s: %v, degraded %q, want %v", text, d.Answer, d.Degraded, empty)
			}
			pass(time.Second)
			if got := b.admits(t, 20); got != 10 {
				t.Errorf("%s: %d admitted after a second, want 10", text, got)
			}
		})
	}
}
