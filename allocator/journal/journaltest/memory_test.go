package journaltest_test

import (
	"errors"
	"testing"

	"github.com/annona-gateway/annona/allocator/journal"
	"github.com/annona-gateway/annona/allocator/journal/journaltest"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	journaltest.Run(t, func(*testing.T) journaltest.Store {
		m := &journaltest.Memory{}
		return journaltest.Store{
			Open:    func(*testing.T) journal.Journal { return m },
			Restart: func(*testing.T) {},
		}
	})
}

func TestMemoryFailsInBothWays(t *testing.T) {
	for name, persist := range map[string]bool{"failed and not written": false, "failed but written": true} {
		t.Run(name, func(t *testing.T) {
			m := &journaltest.Memory{Fault: func(int, []byte) (bool, error) { return persist, errors.New("broken") }}
			if _, err := m.Append(t.Context(), 0, 0, []byte("x")); !errors.Is(err, journal.ErrUnknown) {
				t.Errorf("Append = %v, want ErrUnknown", err)
			}
			if got := len(m.Records(0)) == 1; got != persist {
				t.Errorf("stored = %t, want %t", got, persist)
			}
		})
	}
}

func TestMemoryRollsBack(t *testing.T) {
	m := &journaltest.Memory{}
	var last uint64
	for _, record := range []string{"one", "two", "three"} {
		last, _ = m.Append(t.Context(), 0, last, []byte(record))
	}
	m.Roll(0, 1)
	if _, err := m.Append(t.Context(), 0, last, []byte("four")); !errors.Is(err, journal.ErrConflict) {
		t.Errorf("Append after a record that was lost = %v, want ErrConflict", err)
	}
	if got := len(m.Records(0)); got != 1 {
		t.Errorf("%d records after the roll, want 1", got)
	}
}
