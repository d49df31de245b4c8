package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// data is what a demo keeps in its directory: the journal and documents (NATS' files), the hash secret, and a mark that says
// that the journal has begun. Without the mark a start may begin one with full pools; with it that would give every budget
// out twice, so a journal that is missing then is an error.
type data struct {
	dir    string
	keep   bool
	fresh  bool // the journal is to be begun
	secret []byte
}

const marked = "Annona's demo has begun its journal here. Budgets that were spent are spent.\n"

// openData opens dir, or a new one that is forgotten at the end where dir is "".
func openData(dir string) (*data, error) {
	d := &data{dir: dir, keep: dir != ""}
	var err error
	if !d.keep {
		if d.dir, err = os.MkdirTemp("", "annona-demo-"); err != nil {
			return nil, fmt.Errorf("demo: %w", err)
		}
	}
	if err = os.MkdirAll(d.nats(), 0o700); err != nil {
		return nil, fmt.Errorf("--data: %w; give a directory that can be written", err)
	}
	d.fresh = !exists(d.mark()) && !exists(d.stream())
	d.secret, err = d.readSecret()
	return d, err
}

func (d *data) nats() string { return filepath.Join(d.dir, "nats") }
func (d *data) mark() string { return filepath.Join(d.dir, "journal-begun") }

// stream is where NATS keeps the journal.
func (d *data) stream() string {
	return filepath.Join(d.nats(), "jetstream", "$G", "streams", "ANNONA_JOURNAL")
}

// readSecret returns the secret that hashes this directory's identities, made at the first start.
func (d *data) readSecret() ([]byte, error) {
	path := filepath.Join(d.dir, "hash-secret")
	secret, err := os.ReadFile(path)
	if err == nil {
		return secret, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("--data: %w", err)
	}
	if !d.fresh {
		return nil, fmt.Errorf("--data: %s is missing, so the budgets in %s cannot be told apart; begin with an empty directory", path, d.dir)
	}
	secret = randomSecret()
	if err := os.WriteFile(path, secret, 0o600); err != nil {
		return nil, fmt.Errorf("--data: %w", err)
	}
	return secret, nil
}

// markBegun notes that the journal has begun.
func (d *data) markBegun() error {
	if !d.keep || !d.fresh {
		return nil
	}
	if err := os.WriteFile(d.mark(), []byte(marked), 0o600); err != nil {
		return fmt.Errorf("--data: %w", err)
	}
	return nil
}

func (d *data) close() error {
	if d.keep {
		return nil
	}
	if err := os.RemoveAll(d.dir); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}
