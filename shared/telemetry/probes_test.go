package telemetry_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/metric"

	"github.com/annona-gateway/annona/shared/telemetry"
)

func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w
}

func TestReadyzIsDecidedByRequiredChecksAndNamesAll(t *testing.T) {
	t.Parallel()
	up := telemetry.Check{Name: "redis", OK: true, Required: true}
	down := telemetry.Check{Name: "policies", Required: true, Detail: "there is no policy document"}
	optional := telemetry.Check{Name: "allocator", Detail: "out"}
	for name, row := range map[string]struct {
		checks []telemetry.Check
		want   int
	}{
		"no check":                      {nil, http.StatusOK},
		"all well":                      {[]telemetry.Check{up}, http.StatusOK},
		"a dependency is out":           {[]telemetry.Check{up, optional}, http.StatusOK},
		"a duty cannot be done":         {[]telemetry.Check{down, up}, http.StatusServiceUnavailable},
		"the order makes no difference": {[]telemetry.Check{up, down}, http.StatusServiceUnavailable},
	} {
		h := telemetry.ForTest(io.Discard).Handler(func(context.Context) []telemetry.Check { return row.checks })
		w := get(t, h, "/readyz")
		var body telemetry.Readiness
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatalf("%s: body %q: %v", name, w.Body, err)
		}
		if w.Code != row.want || body.Ready != (row.want == http.StatusOK) || !slices.Equal(body.Checks, row.checks) {
			t.Errorf("%s: /readyz = %d %+v, want %d with %+v", name, w.Code, body, row.want, row.checks)
		}
	}
}

func TestReadyzHasADeadline(t *testing.T) {
	t.Parallel()
	h := telemetry.ForTest(io.Discard).Handler(func(ctx context.Context) []telemetry.Check {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("the checks got a context without a deadline")
		}
		return nil
	})
	get(t, h, "/readyz")
}

func TestHealthzAnswersAndUnknownPathsDoNot(t *testing.T) {
	t.Parallel()
	h := telemetry.ForTest(io.Discard).Handler(nil)
	if w := get(t, h, "/healthz"); w.Code != http.StatusOK {
		t.Errorf("/healthz = %d", w.Code)
	}
	if w := get(t, h, "/debug/pprof/"); w.Code != http.StatusNotFound {
		t.Errorf("/debug/pprof/ = %d, want 404", w.Code)
	}
}

func TestMetricsHaveTheDesignsNamesAndLabels(t *testing.T) {
	t.Parallel()
	tel := telemetry.ForTest(io.Discard)
	ctx := t.Context()
	region, policy := telemetry.LabelRegion.String("eu"), telemetry.LabelPolicy.String("p")
	m := tel.Metrics
	m.Decisions.Add(ctx, 3, metric.WithAttributes(policy, region, telemetry.LabelOutcome.String("denied")))
	m.TakeDuration.Record(ctx, 0.0004, metric.WithAttributes(region))
	m.LeaseWait.Record(ctx, 0.09)
	m.LeaseItems.Add(ctx, 1, metric.WithAttributes(telemetry.LabelKind.String("want"), region))
	m.PoolLevel.Record(ctx, 90, metric.WithAttributes(policy))
	m.Degraded.Add(ctx, 1, metric.WithAttributes(telemetry.LabelDependency.String("redis"), policy))
	m.PolicyRevision.Record(ctx, 7, metric.WithAttributes(telemetry.LabelRole.String("gateway"), region))
	m.EpochBegun.Add(ctx, 1, metric.WithAttributes(telemetry.LabelReason.String("server"), region))
	body := get(t, tel.Handler(nil), "/metrics").Body.String()
	for _, want := range []string{
		`annona_decisions_total{outcome="denied",policy="p",region="eu"} 3`,
		`annona_take_duration_seconds_bucket{region="eu",le="0.0005"} 1`,
		`annona_lease_wait_duration_seconds_bucket{le="0.1"} 1`,
		`annona_lease_items_total{kind="want",region="eu"} 1`,
		`annona_pool_level{policy="p"} 90`,
		`annona_degraded_total{dependency="redis",policy="p"} 1`,
		`annona_policy_revision{region="eu",role="gateway"} 7`,
		`annona_store_epoch_begun_total{reason="server",region="eu"} 1`,
		"go_goroutines ",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
}

func TestCase15_LabelsAreBoundedAndTotalsStayRight(t *testing.T) {
	t.Parallel()
	tel := telemetry.ForTest(io.Discard)
	const sets = 5000
	for i := range sets {
		tel.Metrics.Decisions.Add(t.Context(), 1, metric.WithAttributes(telemetry.LabelPolicy.String(strconv.Itoa(i))))
	}
	body := get(t, tel.Handler(nil), "/metrics").Body.String()
	series := strings.Count(body, "\nannona_decisions_total{")
	if series > 4000 {
		t.Errorf("%d series of one instrument, want at most 4000", series)
	}
	rest := fmt.Sprintf(`annona_decisions_total{otel_metric_overflow="true"} %d`, sets-series+1)
	if !strings.Contains(body, rest) {
		t.Errorf("/metrics lacks %q", rest)
	}
}

func TestTwoRolesInOneProcessKeepTheirMetricsApart(t *testing.T) {
	t.Parallel()
	eu, us := telemetry.ForTest(io.Discard), telemetry.ForTest(io.Discard)
	eu.Metrics.Decisions.Add(t.Context(), 1)
	if body := get(t, eu.Handler(nil), "/metrics").Body.String(); !strings.Contains(body, "annona_decisions_total 1") {
		t.Error("a role's decisions are missing from its own metrics")
	}
	if body := get(t, us.Handler(nil), "/metrics").Body.String(); strings.Contains(body, "annona_decisions_total") {
		t.Error("one role's decisions stand in another's metrics")
	}
}
