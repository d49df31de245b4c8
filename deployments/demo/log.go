package demo

import (
	"bytes"
	"io"
)

// warnings passes on the log lines that a person at a terminal should see: not the ordinary ones of ten roles.
type warnings struct{ to io.Writer }

func (w warnings) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(`"level":"INFO"`)) {
		return len(line), nil
	}
	return w.to.Write(line) //nolint:wrapcheck // a writer's error is its own
}
