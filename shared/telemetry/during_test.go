package telemetry_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// A process' end is what its role made of it, whether or not the collector is there.
func TestDuringReturnsWhatTheRoleDid(t *testing.T) {
	var log bytes.Buffer
	cfg := telemetry.Config{Role: "gateway", Log: &log, OTLP: "http://127.0.0.1:1", Sample: 1}
	failed := errors.New("the role failed")
	for _, want := range []error{nil, failed} {
		log.Reset()
		got := telemetry.During(t.Context(), cfg, func(tel *telemetry.Telemetry) error {
			_, span := tel.Tracer.Start(t.Context(), "work")
			span.End()
			return want
		})
		if !errors.Is(got, want) || (want == nil && got != nil) {
			t.Errorf("During = %v, want %v", got, want)
		}
		if !strings.Contains(log.String(), "WARN") {
			t.Errorf("nothing is said of the collector:\n%s", log.String())
		}
	}
	if err := telemetry.During(t.Context(), telemetry.Config{Sample: 2}, nil); !errors.Is(err, config.ErrUsage) {
		t.Errorf("During with a wrong section = %v, want %v", err, config.ErrUsage)
	}
}
