package admit

import "github.com/annona-gateway/annona/shared/bucket"

// SetShadow begins or ends shadow at once, for every policy: all are evaluated and none is enforced. It is the local red button,
// and asks nobody.
func (a *Admitter) SetShadow(on bool) { a.shadow.Store(on) }

// Shadow tells whether nothing is enforced.
func (a *Admitter) Shadow() bool { return a.shadow.Load() }

// reports makes c one that only reports: nobody hears of its denials, so that they ban nobody.
func (c *claim) reports() { c.shadow, c.charge.Ban = true, bucket.Ban{} }
