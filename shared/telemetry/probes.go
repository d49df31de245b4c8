package telemetry

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// readyTimeout bounds the checks behind /readyz: a probe that hangs is worse than one that says no.
const readyTimeout = 2 * time.Second

// maxScrapes bounds the /metrics answers being written at once.
const maxScrapes = 4

// Check is one dependency or duty in /readyz's body. Required ones decide the status.
type Check struct {
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Required bool   `json:"required"`
	Detail   string `json:"detail,omitempty"`
}

// Readiness is /readyz's body.
type Readiness struct {
	Ready  bool    `json:"ready"`
	Checks []Check `json:"checks"`
}

// Handler serves /healthz, /readyz (200 if every required check is OK, 503 otherwise; JSON body with all) and /metrics.
func (t *Telemetry) Handler(ready func(context.Context) []Check) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		t.answer(w, r, http.StatusOK, map[string]bool{"healthy": true})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		body := Readiness{Ready: true, Checks: append([]Check{}, ready(ctx)...)}
		for _, check := range body.Checks {
			body.Ready = body.Ready && (check.OK || !check.Required)
		}
		status := http.StatusOK
		if !body.Ready {
			status = http.StatusServiceUnavailable
		}
		t.answer(w, r, status, body)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	return mux
}

func (t *Telemetry) answer(w http.ResponseWriter, r *http.Request, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		t.Log.InfoContext(r.Context(), "a probe's answer could not be written", "error", err)
	}
}
