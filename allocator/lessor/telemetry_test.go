package lessor_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/annona-gateway/annona/allocator/journal"
	"github.com/annona-gateway/annona/allocator/journal/journaltest"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// record replaces tel's spans by ones that are kept.
func record(tel *telemetry.Telemetry) *tracetest.SpanRecorder {
	recorder := tracetest.NewSpanRecorder()
	tel.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	return recorder
}

func TestATraceGoesFromTheHeadersToTheJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, memory := &syncBuffer{}, &journaltest.Memory{}
		cfg := config(memory, log)
		recorder := record(cfg.Telemetry)
		r := startWith(t, memory, cfg, log)
		header := nats.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
		answer(r.send(envelope("eu", 0, want(keyOf(0, 1), 1, 1)), header))
		r.ask(envelope("eu", 0, want(keyOf(0, 2), 1, 1)))
		spans := map[string]sdktrace.ReadOnlySpan{}
		for _, span := range recorder.Ended() {
			spans[span.Name()] = span
		}
		decide, store := spans["lease decide"], spans["journal append"]
		if len(recorder.Ended()) != 2 || decide == nil || store == nil {
			t.Fatalf("spans %v, want one decide and one append: the second envelope was not sampled", recorder.Ended())
		}
		if got := decide.SpanContext().TraceID().String(); got != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("trace %s, want the agent's", got)
		}
		if decide.Parent().SpanID() != (trace.SpanID{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31}) {
			t.Errorf("lease decide hangs under %s, want the agent's span", decide.Parent().SpanID())
		}
		if store.Parent().SpanID() != decide.SpanContext().SpanID() {
			t.Error("journal append does not hang under lease decide")
		}
	})
}

func TestSpansEndWhateverHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		memory.Fault = func(_ int, record []byte) (bool, error) {
			if isBegun(record) {
				return true, nil
			}
			return false, journal.ErrUnknown
		}
		log := &syncBuffer{}
		cfg := config(memory, log)
		recorder := record(cfg.Telemetry)
		r := startWith(t, memory, cfg, log)
		header := nats.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
		for n := range 10 {
			r.send(envelope("eu", 0, want(keyOf(0, n), 1, 1)), header)
		}
		synctest.Wait()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if started, ended := len(recorder.Started()), len(recorder.Ended()); started < 10 || started != ended {
			t.Errorf("%d spans began and %d ended, want all", started, ended)
		}
	})
}

func TestItemsAreCountedByKindAndRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, memory := &syncBuffer{}, &journaltest.Memory{}
		cfg := config(memory, log)
		r := startWith(t, memory, cfg, log)
		env := envelope("eu", 0, want(keyOf(0, 1), 1, 91))
		r.granted(env)
		r.granted(env)
		r.granted(envelope("us", 0, want(keyOf(0, 1), 1, 1)))
		r.granted(envelope("us", 0, want(keyOf(0, 1), 2, 0)))
		unknown := want(keyOf(0, 2), 1, 1)
		unknown.Policy = "none"
		r.granted(envelope("ap", 0, unknown))
		w := httptest.NewRecorder()
		cfg.Telemetry.Handler(nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		for _, line := range []string{
			`annona_lease_items_total{kind="granted",region="eu"} 1`,
			`annona_lease_items_total{kind="repeated",region="eu"} 1`,
			`annona_lease_items_total{kind="dry",region="us"} 1`,
			`annona_lease_items_total{kind="settled",region="us"} 1`,
			`annona_lease_items_total{kind="refused",region="ap"} 1`,
			`annona_pool_level{policy="per-user"} 0`,
		} {
			if !strings.Contains(w.Body.String(), line) {
				t.Errorf("metrics lack %s", line)
			}
		}
	})
}
