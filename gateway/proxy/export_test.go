package proxy

import "time"

// SetGrace gives clients less time for their bodies, for tests.
func (t *Target) SetGrace(grace time.Duration) { t.grace = grace }
