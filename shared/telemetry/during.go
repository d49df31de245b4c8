package telemetry

import (
	"context"
	"fmt"
	"time"

	"github.com/annona-gateway/annona/shared/config"
)

// flushTime bounds the flush at a process' end.
const flushTime = time.Second

// During runs f with the telemetry of cfg, and flushes it when f has returned. It returns what f did, or [config.ErrUsage] for a
// cfg that is wrong. A collector that is out is logged: it makes no orderly end a failure.
func During(ctx context.Context, cfg Config, f func(*Telemetry) error) error {
	t, err := Start(ctx, cfg)
	if err != nil {
		return fmt.Errorf("%w: telemetry: %w", config.ErrUsage, err)
	}
	err = f(t)
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	if failed := t.Shutdown(flush); failed != nil {
		t.Log.WarnContext(flush, "telemetry was not flushed", "error", failed)
	}
	return err
}
