package bucket

import "time"

const (
	// HolderLasts is how long a holder's slots are held after its last renewal (PROTOCOL.md B8). A process ends the requests
	// that hold slots once so much has passed, by its own clock, since it sent the last renewal that succeeded.
	HolderLasts = 10 * time.Second
	// RenewEvery is how often a holder is renewed.
	RenewEvery = time.Second
	// SlotsAskAgain is what State.RetryIn and State.Reset say of slots, µs: nobody knows when a request ends.
	SlotsAskAgain = 1_000_000
)

// Holder is one registration of one process, by which its slots are held: as long as the holder is renewed. It is a random
// number below 2⁵², so no two processes have the same; 0 is none.
type Holder uint64
