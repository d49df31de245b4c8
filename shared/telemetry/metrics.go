package telemetry

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
)

// maxSeries bounds the label sets of one instrument: 800 policies in every outcome of a gateway's region. What comes beyond
// is counted together under otel_metric_overflow="true", so totals stay right.
const maxSeries = 4000

// The labels. Their values are names of a policy document or of the code, never a client's.
const (
	LabelPolicy     attribute.Key = "policy"
	LabelRegion     attribute.Key = "region"
	LabelOutcome    attribute.Key = "outcome"    // admitted, denied, refused, shadow_denied, open
	LabelKind       attribute.Key = "kind"       // of a lease item: the words want, grant, settle, return, lapse
	LabelDependency attribute.Key = "dependency" // redis, allocator
	LabelRole       attribute.Key = "role"       // gateway, region, allocator
	LabelReason     attribute.Key = "reason"     // why a store's epoch began; why it could not be asked
)

// Metrics are the instruments of all roles, named in one place. Labels are policy names, regions, outcomes and kinds only.
type Metrics struct {
	Decisions      metric.Int64Counter     // annona.decisions{policy,region,outcome}
	TakeDuration   metric.Float64Histogram // annona.take.duration, s
	LeaseWait      metric.Float64Histogram // annona.lease.wait.duration, s
	LeaseItems     metric.Int64Counter     // annona.lease.items{kind,region}
	PoolLevel      metric.Int64Gauge       // annona.pool.level{policy}
	Degraded       metric.Int64Counter     // annona.degraded{dependency,policy}
	PolicyRevision metric.Int64Gauge       // annona.policy.revision{role,region}
	EpochBegun     metric.Int64Counter     // annona.store.epoch.begun{reason,region}
	StoreErrors    metric.Int64Counter     // annona.store.errors{reason,region}
	Corrections    metric.Int64Counter     // annona.corrections{outcome}
	Candidates     metric.Int64Counter     // annona.candidate.decisions{policy,region,outcome}
	QueueWait      metric.Float64Histogram // annona.queue.wait.duration, s
	Blocked        metric.Int64Counter     // annona.blocked{region}
}

// takeBounds (s) are fine where a local Redis answers and end beyond the longest redis.timeout that makes sense.
func takeBounds() []float64 {
	return []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}
}

// waitBounds (s) run from a round trip within a continent to the longest lease_wait, 2 s.
func waitBounds() []float64 {
	return []float64{.005, .01, .025, .05, .1, .15, .2, .3, .5, .75, 1, 1.5, 2}
}

// queueBounds (s) run from a few requests ahead to the longest that a client may still be there for.
func queueBounds() []float64 {
	return []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
}

// newRegistry returns a registry of its own with the runtime's and the process' metrics: goroutines and memory are what an
// operator looks at when a dependency is slow.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

func newMeters(res *resource.Resource, registry *prometheus.Registry) (*sdkmetric.MeterProvider, *Metrics, error) {
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		return nil, nil, fmt.Errorf("prometheus exporter: %w", err)
	}
	provider := sdkmetric.NewMeterProvider(
		sdkmetric.WithResource(res), sdkmetric.WithReader(reader), sdkmetric.WithCardinalityLimit(maxSeries))
	metrics, err := newMetrics(provider.Meter(scope))
	return provider, metrics, err
}

func newMetrics(meter metric.Meter) (*Metrics, error) {
	var problems [13]error
	var m Metrics
	m.Decisions, problems[0] = meter.Int64Counter("annona.decisions",
		metric.WithDescription("Decisions by policy, region and outcome."))
	m.TakeDuration, problems[1] = meter.Float64Histogram("annona.take.duration", metric.WithUnit("s"),
		metric.WithDescription("How long a take took, the wait for a lease left out."),
		metric.WithExplicitBucketBoundaries(takeBounds()...))
	m.LeaseWait, problems[2] = meter.Float64Histogram("annona.lease.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("How long a request waited for a lease."),
		metric.WithExplicitBucketBoundaries(waitBounds()...))
	m.LeaseItems, problems[3] = meter.Int64Counter("annona.lease.items",
		metric.WithDescription("Items of the lease protocol by kind and region."))
	m.PoolLevel, problems[4] = meter.Int64Gauge("annona.pool.level",
		metric.WithDescription("The lowest level of a policy's pools that were asked lately, in tokens."))
	m.Degraded, problems[5] = meter.Int64Counter("annona.degraded",
		metric.WithDescription("Requests decided while a dependency was out, by dependency and policy."))
	m.PolicyRevision, problems[6] = meter.Int64Gauge("annona.policy.revision",
		metric.WithDescription("Revision of the policy document that a role works by."))
	m.EpochBegun, problems[7] = meter.Int64Counter("annona.store.epoch.begun",
		metric.WithDescription("Epochs begun by a region's store, by reason."))
	m.StoreErrors, problems[8] = meter.Int64Counter("annona.store.errors",
		metric.WithDescription("Takes that a region's store did not answer, by reason: the code of its error, silent, other."))
	m.Corrections, problems[9] = meter.Int64Counter("annona.corrections",
		metric.WithDescription("Costs looked at after the answer, by outcome: settled, failed (the cost stays as charged), misread."))
	m.Candidates, problems[10] = meter.Int64Counter("annona.candidate.decisions",
		metric.WithDescription("Requests that candidate policies decided beside current ones: same, newly_denied, newly_admitted."))
	m.QueueWait, problems[11] = meter.Float64Histogram("annona.queue.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("How long an admitted request waited for its turn (max_delay)."),
		metric.WithExplicitBucketBoundaries(queueBounds()...))
	m.Blocked, problems[12] = meter.Int64Counter("annona.blocked",
		metric.WithDescription("Requests of blocked identities, answered 403."))
	return &m, errors.Join(problems[:]...)
}
