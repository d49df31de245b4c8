package gateway

import (
	"strings"
	"sync/atomic"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/policy"
)

// One trace: the request, its takes and its wait, with the ids that the client, the agent and the upstream are told.
func TestOneTrace(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	var announced atomic.Value
	s := &fakeStore{take: func(r bucket.Request) (bucket.Verdict, error) {
		announced.Store(r.Traceparent)
		outcome := bucket.Denied
		if r.MayWait {
			outcome = bucket.Wait
		}
		return bucket.Verdict{Outcome: outcome, States: []bucket.State{{Lacking: true}}}, nil
	}}
	encoded, err := policy.EncodeRegions(&policy.Regions{Regions: []policy.Region{{Name: "eu", Weight: 1}}, Shards: 4, Times: policy.DefaultTimes()})
	if err != nil {
		t.Fatal(err)
	}
	s.mirror = bucket.Mirror{RegionsRevision: 1, Regions: encoded}
	cfg := testConfig(t, strings.NewReplacer("scope: region", "scope: global, lease_wait: 50ms").Replace(perUser), upstream(t).URL)
	cfg.Telemetry.Exporter = exporter
	g := run(t, cfg, s)
	id := g.get(t, "/", "X-API-Key", "key-alice", "Traceparent", "00-11111111111111111111111111111111-2222222222222222-01").problem(t).TraceID
	if parent, _ := announced.Load().(string); !strings.Contains(parent, id) {
		t.Errorf("announced traceparent %q, want trace %s", parent, id)
	}
	names := map[string]int{}
	eventually(t, "the request's span has ended", func() bool {
		if err := g.telemetry.Provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
		clear(names)
		for _, span := range exporter.GetSpans() {
			if span.SpanContext.TraceID().String() == id {
				names[span.Name]++
			}
		}
		return names["request"] == 1
	})
	if names["take"] != 2 || names["lease wait"] != 1 || id == strings.Repeat("1", 32) {
		t.Errorf("spans of trace %s: %v, want two takes and a wait below a trace of our own", id, names)
	}
	for _, span := range exporter.GetSpans() {
		for _, a := range span.Attributes {
			if strings.Contains(a.Value.String(), "alice") {
				t.Errorf("span %s shows the client: %s=%s", span.Name, a.Key, a.Value.String())
			}
		}
	}
}

// What the upstream takes is a span of its own, and it is that one's id that the upstream is told.
func TestUpstreamHasASpan(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	cfg := testConfig(t, perUser, upstream(t).URL)
	cfg.Telemetry.Exporter = exporter
	g := run(t, cfg, &fakeStore{take: admitAll})
	parent := g.get(t, "/", "X-API-Key", "key-alice").echoed(t).Header.Get("Traceparent")
	eventually(t, "the request's span has ended", func() bool {
		if err := g.telemetry.Provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
		var request, forwarded tracetest.SpanStub
		for _, span := range exporter.GetSpans() {
			switch span.Name {
			case "request":
				request = span
			case "upstream":
				forwarded = span
			}
		}
		return request.SpanContext.IsValid() && forwarded.Parent.SpanID() == request.SpanContext.SpanID() &&
			strings.Contains(parent, forwarded.SpanContext.SpanID().String())
	})
}
