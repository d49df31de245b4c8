package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/annona-gateway/annona/shared/telemetry"
)

func start(t *testing.T, cfg telemetry.Config) *telemetry.Telemetry {
	t.Helper()
	tel, err := telemetry.Start(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Start(%+v) = %v", cfg, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
		defer cancel()
		_ = tel.Shutdown(ctx) // some tests break the exporter on purpose
	})
	return tel
}

func line(t *testing.T, log *bytes.Buffer) map[string]any {
	t.Helper()
	record := map[string]any{}
	if err := json.Unmarshal(log.Bytes(), &record); err != nil {
		t.Fatalf("log %q is not one JSON object: %v", log, err)
	}
	return record
}

func TestALogLineNamesRoleRegionAndTrace(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	tel := start(t, telemetry.Config{Role: "gateway", Region: "eu", Log: &log})
	ctx, span := tel.Tracer.Start(t.Context(), "request")
	defer span.End()
	tel.Log.With("policy", "p").InfoContext(ctx, "hello")
	got := line(t, &log)
	for key, want := range map[string]string{
		"role": "gateway", "region": "eu", "policy": "p", "msg": "hello", "level": "INFO",
		"trace_id": span.SpanContext().TraceID().String(), "span_id": span.SpanContext().SpanID().String(),
	} {
		if got[key] != want {
			t.Errorf("log[%q] = %v, want %v", key, got[key], want)
		}
	}
}

func TestALogLineOutsideASpanHasNoTrace(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	tel := telemetry.ForTest(&log)
	tel.Log.Debug("below the level")
	tel.Log.Info("hello")
	if got := line(t, &log); got["trace_id"] != nil {
		t.Errorf("trace_id = %v, want none", got["trace_id"])
	}
}

func TestABadSectionIsRefused(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]telemetry.Config{
		"a negative share":      {Sample: -0.1},
		"more than all":         {Sample: 1.1},
		"no number":             {Sample: math.NaN()},
		"no scheme":             {OTLP: "collector:4318"},
		"no host":               {OTLP: "http://"},
		"a credential in clear": {OTLP: "http://user:hunter2@collector:4318"},
	} {
		_, err := telemetry.Start(t.Context(), cfg)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: Start = %v, want an error without the credential", name, err)
		}
	}
}

func TestSpansReachTheExporterByTheCallersDecision(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	tel := start(t, telemetry.Config{Role: "gateway", Exporter: exporter}) // sample 0: only what a caller samples
	_, own := tel.Tracer.Start(t.Context(), "own")
	own.End()
	ctx := telemetry.FromTraceparent(t.Context(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	_, remote := tel.Tracer.Start(ctx, "asked for")
	remote.End()
	if err := tel.Provider.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans := exporter.GetSpans()
	if len(spans) != 1 || spans[0].Name != "asked for" || spans[0].Parent.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("exported %v, want the caller's alone", spans)
	}
}

// broken is an exporter whose collector is out.
type broken struct{}

func (broken) ExportSpans(context.Context, []trace.ReadOnlySpan) error {
	return errors.New("connection refused")
}
func (broken) Shutdown(context.Context) error { return nil }

// shared is a buffer that the exporter's goroutine and the test both use.
type shared struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func TestACollectorThatIsOutCostsOneLineAMinute(t *testing.T) {
	t.Parallel()
	var log shared
	tel := start(t, telemetry.Config{Sample: 1, Exporter: broken{}, Log: &log})
	for range 3 {
		_, span := tel.Tracer.Start(t.Context(), "request")
		span.End()
		if err := tel.Provider.ForceFlush(t.Context()); err != nil {
			t.Fatalf("ForceFlush = %v: an export that failed must stop nobody", err)
		}
	}
	if got := strings.Count(log.String(), "spans were not exported"); got != 1 {
		t.Errorf("%d lines of complaint, want 1:\n%s", got, log.String())
	}
}

func TestStartAndShutdownDoNotWaitForACollector(t *testing.T) {
	t.Parallel()
	// A listener that never answers is worse than one that refuses.
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	tel := start(t, telemetry.Config{Sample: 1, OTLP: "http://" + silent.Addr().String(), Log: new(shared)})
	_, span := tel.Tracer.Start(t.Context(), "request")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- tel.Shutdown(ctx) }()
	select {
	case err := <-done:
		t.Logf("Shutdown = %v", err) // either way: it came back
	case <-time.After(5 * time.Second):
		t.Fatal("Shutdown outlived its context by seconds")
	}
}
