package admincmd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/shared/policy"
)

// regionColumn heads the column of regions in every table.
const regionColumn = "REGION"

// table writes rows of cells in aligned columns.
func (c *client) table(rows [][]string) error {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = clean(cell)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return c.printf("%s", text.String())
}

// ago writes how long before now t was.
func ago(t *time.Time, now time.Time) string {
	if t == nil {
		return "never"
	}
	return max(now.Sub(*t), 0).Round(time.Second).String() + " ago"
}

func in(seconds *int64) string {
	if seconds == nil {
		return "-"
	}
	return "in " + (time.Duration(*seconds) * time.Second).String()
}

func number[T ~int64 | ~uint64](n T) string { return fmt.Sprintf("%d", n) }

func regions(ctx context.Context, c *client, now time.Time) error {
	var list admin.Regions
	if printed, err := c.ask(ctx, http.MethodGet, "/regions", nil, &list); err != nil || printed {
		return err
	}
	rows := [][]string{{regionColumn, "STATE", "WEIGHT", "SHARE", "LEASED", "HEARD", "AGENTS"}}
	for _, r := range list.Items {
		share := strconv.FormatFloat(100*r.Share, 'f', 1, 64) + "%"
		state := r.State
		if r.SecretMismatch {
			state += ", WRONG SECRET"
		}
		rows = append(rows, []string{
			r.Name, state, number(r.Weight), share, number(r.TokensLeased), ago(r.LastHeard, now), strings.Join(r.Agents, ","),
		})
	}
	return c.table(rows)
}

type leaseFlags struct{ policy, region, keyID, cursor string }

func leases(ctx context.Context, c *client, flags leaseFlags) error {
	query := url.Values{}
	filters := map[string]string{policyFlag: flags.policy, "region": flags.region, "key_id": flags.keyID, "cursor": flags.cursor}
	for name, value := range filters {
		if value != "" {
			query.Set(name, value)
		}
	}
	path := "/leases"
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	var list admin.List[admin.Lease]
	if printed, err := c.ask(ctx, http.MethodGet, path, nil, &list); err != nil || printed {
		return err
	}
	rows := [][]string{{"POLICY", "CLIENT", "POOL", regionColumn, "HOLDS", "EXPIRES", "KEY ID"}}
	for _, l := range list.Items {
		for _, h := range l.Regions {
			rows = append(rows, []string{
				named(l.Policy, l.Variant), l.Identity, number(l.PoolLevel), h.Region, number(h.Outstanding), in(&h.ExpiresIn), l.KeyID,
			})
		}
	}
	if err := c.table(rows); err != nil || list.Next == "" {
		return err
	}
	return c.printf("There are more: --cursor %s\n", clean(list.Next))
}

func named(policy, variant string) string {
	if variant == "" {
		return policy
	}
	return policy + " (" + variant + ")"
}

type identityFlags struct{ policy, user, apiKey, ip, tier string }

// request checks the flags. An API key leaves this machine as its SHA-256 only; one that itself is 64 hexadecimal digits is
// taken as a SHA-256.
func (f identityFlags) request() (admin.UsageRequest, error) {
	r := admin.UsageRequest{Policy: f.policy, Identity: policy.Identity{User: f.user, Tier: f.tier}}
	if f.policy == "" {
		return r, usageError("give --policy NAME; `annona admin policy get` has the names")
	}
	if f.ip != "" {
		ip, err := netip.ParseAddr(f.ip)
		if err != nil {
			return r, usageError("--ip: give an address like 192.0.2.1 or 2001:db8::1")
		}
		r.Identity.IP = ip
	}
	if f.apiKey != "" {
		r.Identity.APIKey = strings.ToLower(f.apiKey)
		if sum, err := hex.DecodeString(f.apiKey); err != nil || len(sum) != sha256.Size {
			hashed := sha256.Sum256([]byte(f.apiKey))
			r.Identity.APIKey = hex.EncodeToString(hashed[:])
		}
	}
	return r, nil
}

func usage(ctx context.Context, c *client, request admin.UsageRequest, now time.Time) error {
	var u admin.Usage
	if printed, err := c.ask(ctx, http.MethodPost, "/usage", request, &u); err != nil || printed {
		return err
	}
	remaining := "each region counts for itself; ask a gateway's POST /v1/usage"
	if u.Remaining != nil {
		remaining = number(*u.Remaining) + " of " + number(u.Limit)
		if u.Reset != nil && *u.Reset > 0 {
			remaining += ", " + resets(*u.Remaining > 0) + in(u.Reset)
		}
	}
	head := [][]string{{policyFlag, named(u.Policy, u.Variant)}, {"client", u.Identity}, {"key id", u.KeyID}, {"remaining", remaining}}
	if err := c.table(head); err != nil {
		return err
	}
	rows := [][]string{{""}, {regionColumn, "ALLOTMENT", "LEASE", "EXPIRES", "SPENT", "DENIED", "HEARD"}}
	for _, r := range u.Regions {
		rows = append(rows, []string{
			r.Region, number(r.Allotment), number(r.Lease), in(r.Expires), number(r.Spent), number(r.Denied), ago(r.HeardAt, now),
		})
	}
	if err := c.table(rows); err != nil || len(u.Denials) == 0 {
		return err
	}
	rows = [][]string{{""}, {"DENIED AT", regionColumn, "COST", "TRACE ID"}}
	for _, d := range u.Denials {
		rows = append(rows, []string{d.At.UTC().Format(time.RFC3339), d.Region, number(d.Cost), d.TraceID})
	}
	return c.table(rows)
}

func resets(some bool) string {
	if some {
		return "full again "
	}
	return "the next token "
}
