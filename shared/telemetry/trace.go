package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
)

const (
	// spanQueue bounds the spans that wait for export; beyond it they are dropped, for a request never waits for a collector.
	spanQueue = 4096
	// exportEvery is how long a span waits at most for others to be sent along: a trace is looked at seconds later.
	exportEvery = time.Second
	// exportTimeout bounds one export with its retries; at 10 s a collector that is out holds one batch, not the queue.
	exportTimeout = 10 * time.Second
	// complainEvery keeps an export that fails all day from filling the log.
	complainEvery = time.Minute
)

// newTracerProvider returns a provider that follows the caller's decision to sample and decides by ratio where there is none.
// Without an exporter spans still have ids, which logs and answers name.
func newTracerProvider(
	res *resource.Resource, sample float64, exporter trace.SpanExporter, log *slog.Logger,
) *trace.TracerProvider {
	options := []trace.TracerProviderOption{
		trace.WithResource(res),
		trace.WithSampler(trace.ParentBased(trace.TraceIDRatioBased(sample))),
	}
	if exporter != nil {
		options = append(options, trace.WithBatcher(&patient{SpanExporter: exporter, log: log},
			trace.WithMaxQueueSize(spanQueue),
			trace.WithBatchTimeout(exportEvery),
			trace.WithExportTimeout(exportTimeout)))
	}
	return trace.NewTracerProvider(options...)
}

// collectorURL returns where a collector takes traces: the configured address with OTLP's path, unless it names one.
func collectorURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	// The text is not quoted: it may hold a credential.
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, errors.New("telemetry.otlp is not a URL of a collector: write http://HOST:4318, without a path for OTLP's own")
	}
	if u.User != nil {
		return nil, errors.New("telemetry.otlp holds a credential, which would be in clear: set OTEL_EXPORTER_OTLP_HEADERS instead")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	return u, nil
}

func newOTLPExporter(ctx context.Context, text string) (trace.SpanExporter, error) {
	u, err := collectorURL(text)
	if err != nil {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()), otlptracehttp.WithTimeout(exportTimeout))
	if err != nil {
		return nil, fmt.Errorf("export traces to %s: %w", u.Redacted(), err)
	}
	return exporter, nil
}

// patient is an exporter whose failures go to the role's log, seldom, in place of OpenTelemetry's global error handler.
type patient struct {
	trace.SpanExporter

	log        *slog.Logger
	complained atomic.Int64 // when, in nanoseconds of the Unix epoch
	lost       atomic.Int64 // spans, since the last complaint
}

func (p *patient) ExportSpans(ctx context.Context, spans []trace.ReadOnlySpan) error {
	err := p.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	p.lost.Add(int64(len(spans)))
	now, last := time.Now().UnixNano(), p.complained.Load()
	if now-last >= int64(complainEvery) && p.complained.CompareAndSwap(last, now) {
		p.log.Warn("spans were not exported; is the collector up?", "spans", p.lost.Swap(0), "error", err)
	}
	return nil
}

// w3c is how a trace crosses processes: header traceparent, and tracestate where there is one.
var w3c = propagation.TraceContext{} //nolint:gochecknoglobals // stateless

const traceparent = "traceparent"

// Traceparent returns ctx's span as a W3C traceparent, "" if it is not sampled.
func Traceparent(ctx context.Context) string {
	if !oteltrace.SpanContextFromContext(ctx).IsSampled() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	w3c.Inject(ctx, carrier)
	return carrier[traceparent]
}

// FromTraceparent is Traceparent's inverse: ctx with that span as its remote parent, or ctx itself where text is not one.
func FromTraceparent(ctx context.Context, text string) context.Context {
	return w3c.Extract(ctx, propagation.MapCarrier{traceparent: text})
}

// Inject writes ctx's span into the headers of a message: http.Header, nats.Header.
func Inject(ctx context.Context, header map[string][]string) {
	w3c.Inject(ctx, propagation.HeaderCarrier(http.Header(header)))
}

// Extract returns ctx with the span of a message's headers as its remote parent, or ctx itself where they name none.
func Extract(ctx context.Context, header map[string][]string) context.Context {
	return w3c.Extract(ctx, propagation.HeaderCarrier(http.Header(header)))
}
