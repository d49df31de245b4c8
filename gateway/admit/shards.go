package admit

import "github.com/annona-gateway/annona/shared/policy"

// Shards is how many shards the region's buckets are spread over, as far as the documents in use tell.
func (a *Admitter) Shards() int {
	if s := a.Snapshot(); s != nil {
		return s.shards
	}
	return policy.DefaultShards
}
