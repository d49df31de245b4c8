// Package telemetry gives every role its logs (slog JSON with trace ids), traces and metrics (OpenTelemetry), and the probes.
// Names of logs and metrics are the words of the design; no client's identity ever becomes a label.
//
// Nothing here is global: a role holds its own Telemetry, so that many roles in one process keep their metrics and spans apart.
// Nothing here waits for a collector either: spans queue up to a bound and are dropped beyond it, and a collector that is out
// costs a line in the log now and then.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// scope names this code as the instrumentation in spans.
const scope = "github.com/annona-gateway/annona"

// Config is a role's `telemetry` section.
type Config struct {
	OTLP   string  `yaml:"otlp"`   // http://host:4318; "": traces are not exported
	Sample float64 `yaml:"sample"` // share of requests traced, 0 to 1, where the caller did not decide
	// Role and Region name the process; Log is where its logs go (default standard error); Exporter replaces OTLP in tests
	// and in the demo.
	Role     string             `yaml:"-"`
	Region   string             `yaml:"-"`
	Log      io.Writer          `yaml:"-"`
	Exporter trace.SpanExporter `yaml:"-"`
}

// Validate returns what is wrong with the section, nil if nothing.
func (c Config) Validate() error {
	var problems []error
	if !(c.Sample >= 0 && c.Sample <= 1) { // written so that NaN is refused
		problems = append(problems, fmt.Errorf("telemetry.sample %v: give a share from 0 to 1", c.Sample))
	}
	if c.OTLP != "" {
		_, err := collectorURL(c.OTLP)
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// Telemetry is one role's.
type Telemetry struct {
	Log     *slog.Logger
	Tracer  oteltrace.Tracer
	Metrics *Metrics
	// Provider is where libraries that make their own spans get their tracer.
	Provider *trace.TracerProvider

	registry *prometheus.Registry
	meters   *sdkmetric.MeterProvider
	stop     sync.Once
	stopped  error
}

// Start sets up a role's telemetry; nothing is global, so roles in one process keep apart. It waits for nobody.
func Start(ctx context.Context, cfg Config) (*Telemetry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	log := newLogger(cfg)
	exporter := cfg.Exporter
	if exporter == nil && cfg.OTLP != "" {
		var err error
		if exporter, err = newOTLPExporter(ctx, cfg.OTLP); err != nil {
			return nil, err
		}
	}
	t := &Telemetry{Log: log, registry: newRegistry()}
	res := resource.NewSchemaless(
		attribute.String("service.name", "annona-"+cfg.Role),
		attribute.String("annona.region", cfg.Region),
	)
	t.Provider = newTracerProvider(res, cfg.Sample, exporter, log)
	t.Tracer = t.Provider.Tracer(scope)
	var err error
	if t.meters, t.Metrics, err = newMeters(res, t.registry); err != nil {
		return nil, fmt.Errorf("set up metrics: %w", err)
	}
	return t, nil
}

// ForTest returns telemetry that logs to w, samples nothing and exports nothing. Its metrics count like any other's.
func ForTest(w io.Writer) *Telemetry {
	t, err := Start(context.Background(), Config{Role: "test", Region: "test", Log: w})
	if err != nil {
		panic(err) // the configuration above is valid
	}
	return t
}

// Shutdown flushes what is pending, within ctx. It does so once; later calls return what the first did.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	t.stop.Do(func() {
		if err := errors.Join(t.Provider.Shutdown(ctx), t.meters.Shutdown(ctx)); err != nil {
			t.stopped = fmt.Errorf("flush telemetry: %w", err)
		}
	})
	return t.stopped
}

func newLogger(cfg Config) *slog.Logger {
	w := cfg.Log
	if w == nil {
		w = os.Stderr
	}
	log := slog.New(traced{slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo})})
	if cfg.Role != "" {
		log = log.With("role", cfg.Role)
	}
	if cfg.Region != "" {
		log = log.With("region", cfg.Region)
	}
	return log
}

// traced adds the ids of the context's span to every record, so that a line in the log leads to its trace.
type traced struct{ slog.Handler }

func (h traced) Handle(ctx context.Context, r slog.Record) error {
	if span := oteltrace.SpanContextFromContext(ctx); span.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r) //nolint:wrapcheck // a handler is transparent
}

func (h traced) WithAttrs(attrs []slog.Attr) slog.Handler { return traced{h.Handler.WithAttrs(attrs)} }
func (h traced) WithGroup(name string) slog.Handler       { return traced{h.Handler.WithGroup(name)} }
