package gateway

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// bansPage is about how many bans one page lists.
const bansPage = 100

var errUnknownID = errors.New("there is none with this id; list them for those that there are")

// listBlocks answers GET /v1/blocks.
func (g *Gateway) listBlocks(w http.ResponseWriter, r *http.Request) error {
	list, err := g.store.Blocks(r.Context())
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b bucket.Block) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), strings.Compare(a.ID.String(), b.ID.String()))
	})
	answer, now := BlocksAnswer{Items: make([]BlockAnswer, 0, len(list))}, time.Now()
	for _, b := range list {
		answer.Items = append(answer.Items, blockAnswer(g.secret, b, now))
	}
	g.answerCheck(r.Context(), w, answer)
	return nil
}

// block answers POST /v1/blocks. The same identity again changes its block.
func (g *Gateway) block(w http.ResponseWriter, r *http.Request) error {
	var body BlockRequest
	if err := readCheck(w, r, &body); err != nil {
		return err
	}
	switch most := int64(bucket.MaxBlock / time.Second); {
	case len(body.Reason) > bucket.MaxReason:
		return badCheck("reason is longer than %d bytes", bucket.MaxReason)
	case body.For < 0 || body.For > most:
		return badCheck("for must be 1 to %d seconds; leave it out for a block without an end", most)
	case body.Identity.Tier != "" || len(body.Identity.Claims) > 0:
		return badCheck("identity: tiers and claims cannot be blocked; name a user, an api_key or an ip")
	}
	id, err := g.identityOf(body.Identity)
	if err != nil {
		return err
	}
	parts := blockablesOf(&id)
	if len(parts) != 1 {
		return badCheck("identity: name exactly one of user, api_key and ip; two blocks take two requests")
	}
	b := bucket.Block{
		ID: parts[0].id(g.secret), Sealed: g.secret.Seal(parts[0].part + "=" + parts[0].value), Reason: body.Reason,
		Left: time.Duration(body.For) * time.Second,
	}
	if err := g.store.Block(r.Context(), b); err != nil {
		return err
	}
	g.telemetry.Log.InfoContext(r.Context(), "an identity was blocked", "id", b.ID.String(), "for", b.Left.String())
	poke(g.blocksChanged)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	g.answerCheck(r.Context(), w, blockAnswer(g.secret, b, time.Now()))
	return nil
}

// unblock answers DELETE /v1/blocks/{id}.
func (g *Gateway) unblock(w http.ResponseWriter, r *http.Request) error {
	return g.remove(w, r, "a block was removed", func(id limit.Key) (bool, error) {
		defer poke(g.blocksChanged)
		return g.store.Unblock(r.Context(), id)
	})
}

// unban answers DELETE /v1/bans/{id}.
func (g *Gateway) unban(w http.ResponseWriter, r *http.Request) error {
	return g.remove(w, r, "a ban was ended", func(id limit.Key) (bool, error) {
		ref := bucket.Ref{Shard: id.Shard(g.admitter.Shards()), Key: id}
		found, err := g.store.Unban(r.Context(), ref)
		if err == nil {
			g.admitter.Filled(bucket.Announcement{Ref: ref}) // what is remembered of it holds no longer
		}
		return found, err
	})
}

func (g *Gateway) remove(w http.ResponseWriter, r *http.Request, what string, remove func(limit.Key) (bool, error)) error {
	id, err := limit.ParseKey(r.PathValue("id"))
	if err != nil {
		return errUnknownID
	}
	found, err := remove(id)
	switch {
	case err != nil:
		return err
	case !found:
		return errUnknownID
	}
	g.telemetry.Log.InfoContext(r.Context(), what, "id", id.String())
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// listBans answers GET /v1/bans?cursor=.
func (g *Gateway) listBans(w http.ResponseWriter, r *http.Request) error {
	from, shards := 0, g.admitter.Shards()
	if cursor := r.URL.Query().Get("cursor"); cursor != "" {
		var err error
		if from, err = strconv.Atoi(cursor); err != nil || from < 1 || from >= shards {
			return badCheck("cursor is none that a page told as next")
		}
	}
	list, next, err := g.store.Bans(r.Context(), shards, from, bansPage)
	if err != nil {
		return err
	}
	answer, now := BansAnswer{Items: make([]BanAnswer, 0, len(list))}, time.Now()
	for _, b := range list {
		answer.Items = append(answer.Items, BanAnswer{
			ID: b.Key.String(), Policy: b.Policy, Identity: opened(g.secret, b.Sealed),
			Until: after(now, int64((b.Left+time.Second-1)/time.Second)),
		})
	}
	if next > 0 {
		answer.Next = strconv.Itoa(next)
	}
	g.answerCheck(r.Context(), w, answer)
	return nil
}

// candidates answers GET /v1/candidates.
func (g *Gateway) candidates(w http.ResponseWriter, r *http.Request) error {
	answer := CandidatesAnswer{Items: []CandidateAnswer{}}
	for _, report := range g.admitter.Rollouts() {
		answer.Items = append(answer.Items, candidateAnswer(report))
	}
	g.answerCheck(r.Context(), w, answer)
	return nil
}
