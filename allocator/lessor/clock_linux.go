package lessor

import (
	"golang.org/x/sys/unix"

	"github.com/annona-gateway/annona/shared/limit"
)

// sinceBoot reads a clock that nobody sets and that goes on while the machine is suspended: a writer that slept must not
// believe that the leases it gave slept too.
func sinceBoot() limit.Micros {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("read CLOCK_BOOTTIME: " + err.Error()) // every Linux since 2.6.39 has it
	}
	return limit.Micros(t.Nano() / 1000)
}
