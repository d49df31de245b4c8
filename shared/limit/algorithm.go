package limit

// Algorithm says how a limit counts. The zero value is a token bucket.
type Algorithm uint8

// The algorithms. A token bucket's numbers are all of a [Budget]; the others have their N as Capacity and no Rate, and all but
// Concurrency a [Window] besides.
const (
	// TokenBucket fills at a rate up to a capacity. With a delay it is a leaky bucket that is a queue: it may be taken below
	// empty, and whoever does so waits until it is not.
	TokenBucket Algorithm = iota
	// FixedWindow admits N in each window.
	FixedWindow
	// SlidingWindowLog admits N in any (t − W, t].
	SlidingWindowLog
	// SlidingWindowCounter admits N by the estimate of [Estimate], less than 2N in any (t − W, t].
	SlidingWindowCounter
	// Concurrency admits N at the same time.
	Concurrency
)

var algorithmNames = [...]string{"token_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter", "concurrency"}

// Algorithms returns all of them, in the order of the policy document's description.
func Algorithms() []Algorithm {
	return []Algorithm{TokenBucket, FixedWindow, SlidingWindowLog, SlidingWindowCounter, Concurrency}
}

// String returns a's name in the policy document and in a bucket's key.
func (a Algorithm) String() string {
	if int(a) < len(algorithmNames) {
		return algorithmNames[a]
	}
	return "unknown algorithm"
}

// ParseAlgorithm reads what String wrote.
func ParseAlgorithm(text string) (Algorithm, bool) {
	for _, a := range Algorithms() {
		if a.String() == text {
			return a, true
		}
	}
	return 0, false
}

// Windowed tells whether a counts by a window.
func (a Algorithm) Windowed() bool {
	return a == FixedWindow || a == SlidingWindowLog || a == SlidingWindowCounter
}

// MaxN returns the largest N of a limit by a. A log keeps an entry for each admission, so that a take's time grows with it; the
// others keep counts, which must stay below 2⁵³ in Lua.
func (a Algorithm) MaxN() Tokens {
	switch a {
	case FixedWindow, SlidingWindowCounter:
		return MaxWindowTokens
	case SlidingWindowLog:
		return MaxLogTokens
	case Concurrency:
		return MaxSlots
	default:
		return MaxTokens
	}
}

const (
	// MaxWindowTokens is the largest limit of a window that keeps counts.
	MaxWindowTokens Tokens = 1_000_000_000_000
	// MaxLogTokens is the largest limit of a sliding_window_log.
	MaxLogTokens Tokens = 10_000
	// MaxSlots is the largest limit of concurrency.
	MaxSlots Tokens = 1_000_000
)
