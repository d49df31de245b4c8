//go:build !linux

package lessor

import (
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

var started = time.Now() //nolint:gochecknoglobals // where this process' monotonic clock begins

// sinceBoot reads the monotonic clock. On some systems it stops while the machine is suspended: run allocators on Linux.
func sinceBoot() limit.Micros { return limit.Micros(time.Since(started).Microseconds()) }
