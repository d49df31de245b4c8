package admincmd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/shared/policy"
)

const policiesPath = "/policies"

func policyGet(ctx context.Context, c *client) error {
	accept := "application/yaml"
	if c.raw {
		accept = "application/json"
	}
	got, err := c.call(ctx, http.MethodGet, policiesPath, http.Header{"Accept": {accept}}, nil)
	if err != nil {
		return err
	}
	if err := got.refusal(); err != nil {
		return err
	}
	return c.print(got.body)
}

// policyApply replaces the document if nobody else did since it read the present one's ETag.
func policyApply(ctx context.Context, c *client, path string, source []byte) error {
	current, err := c.call(ctx, http.MethodGet, policiesPath, nil, nil)
	if err != nil {
		return err
	}
	header := http.Header{"Content-Type": {"application/yaml"}}
	if filepath.Ext(path) == ".json" {
		header.Set("Content-Type", "application/json")
	}
	switch current.status {
	case http.StatusOK:
		header.Set("If-Match", current.header.Get("ETag"))
	case http.StatusNotFound: // the first one
		header.Set("If-None-Match", "*")
	default:
		return current.refusal()
	}
	got, err := c.call(ctx, http.MethodPut, policiesPath, header, source)
	if err != nil {
		return fmt.Errorf("%w; read the document again to see whether it was replaced", err)
	}
	var changed admin.PoliciesChanged
	printed, err := c.take(got, &changed)
	var refused *refusedError
	if errors.As(err, &refused) && !printed {
		return errors.Join(c.problems(path, refused.problem.Errors), err)
	}
	if err != nil || printed {
		return err
	}
	if err := c.problems(path, changed.Warnings); err != nil {
		return err
	}
	return c.printf("%s is in force: revision %d\n", path, changed.Revision)
}

// problems prints each like `annona policy check` does.
func (c *client) problems(path string, problems policy.Problems) error {
	for _, p := range problems {
		if err := c.printf("%s:%s\n", path, clean(p.String())); err != nil {
			return err
		}
	}
	return nil
}
