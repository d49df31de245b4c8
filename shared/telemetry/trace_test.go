package telemetry_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/annona-gateway/annona/shared/telemetry"
)

func TestTraceparentComesBackAsTheSameSpan(t *testing.T) {
	t.Parallel()
	tel := start(t, telemetry.Config{Sample: 1})
	ctx, span := tel.Tracer.Start(t.Context(), "request")
	defer span.End()
	text := telemetry.Traceparent(ctx)
	back := oteltrace.SpanContextFromContext(telemetry.FromTraceparent(t.Context(), text))
	if back.TraceID() != span.SpanContext().TraceID() || back.SpanID() != span.SpanContext().SpanID() || !back.IsSampled() {
		t.Errorf("FromTraceparent(%q) = %v, want %v", text, back, span.SpanContext())
	}
	header := map[string][]string{}
	telemetry.Inject(ctx, header)
	back = oteltrace.SpanContextFromContext(telemetry.Extract(t.Context(), header))
	if back.SpanID() != span.SpanContext().SpanID() {
		t.Errorf("Extract(%v) = %v, want %v", header, back, span.SpanContext())
	}
}

func TestTraceparentIsEmptyWhereNothingIsSampled(t *testing.T) {
	t.Parallel()
	tel := telemetry.ForTest(io.Discard)
	ctx, span := tel.Tracer.Start(t.Context(), "request")
	defer span.End()
	if got := telemetry.Traceparent(ctx); got != "" {
		t.Errorf("Traceparent of a span that is not sampled = %q", got)
	}
	if got := telemetry.Traceparent(t.Context()); got != "" {
		t.Errorf("Traceparent without a span = %q", got)
	}
}

func TestTextThatIsNoTraceparentChangesNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "x", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
	} {
		if got := telemetry.FromTraceparent(t.Context(), text); got != t.Context() {
			t.Errorf("FromTraceparent(%q) = %v, want the context itself", text, got)
		}
	}
}

func FuzzFromTraceparent(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("00--")
	f.Fuzz(func(t *testing.T, text string) {
		ctx := telemetry.FromTraceparent(t.Context(), text)
		span := oteltrace.SpanContextFromContext(ctx)
		if (ctx == t.Context()) == span.IsValid() {
			t.Errorf("FromTraceparent(%q): a context with span %v", text, span)
		}
	})
}

func TestTracesGoToTheCollectorsOwnPath(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{"": "/v1/traces", "/": "/v1/traces", "/tenant/traces": "/tenant/traces"} {
		paths := make(chan string, 8)
		collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { paths <- r.URL.Path }))
		tel := start(t, telemetry.Config{Sample: 1, OTLP: collector.URL + address})
		_, span := tel.Tracer.Start(t.Context(), "request")
		span.End()
		if err := tel.Provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-paths:
			if got != want {
				t.Errorf("otlp %q: exported to %q, want %q", address, got, want)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("otlp %q: nothing was exported", address)
		}
		collector.Close()
	}
}
