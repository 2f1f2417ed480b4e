//go:build planted

package consensus

// Mistakes are the faults that can be planted in a Core, by name.
var Mistakes = map[string]mistake{
	"vote request before its commit":           mistakeVoteRequestEarly,
	"answers before their commit":              mistakeAnswerEarly,
	"leader counts itself before its commit":   mistakeCountsItselfEarly,
	"vote answer without the promise":          mistakePromiseNotInVote,
	"promise not durable":                      mistakePromiseNotDurable,
	"closed on a minority":                     mistakeCloseOnMinority,
	"closed before an entry of its own term":   mistakeCloseBeforeOwnTerm,
	"promise for a term already left":          mistakePromiseAfterTerm,
	"new leader doesn't begin past promises":   mistakeFloorForgotten,
	"read without a round":                     mistakeReadWithoutRound,
	"leads on in the term after a cut":         mistakeLeadsOn,
	"cuts an entry it counted":                 mistakeCutsCounted,
	"cuts an inherited entry":                  mistakeCutsInherited,
	"asks first, cuts later":                   mistakeAsksFirst,
	"a learner counts":                         mistakeLearnerVotes,
	"config taken from before the restart":     mistakeConfigBeforeRestart,
	"a change before an entry of its own term": mistakeChangeBeforeOwnTerm,
	"promoted before it has caught up":         mistakePromotesEarly,
	"an overwritten change stays pending":      mistakeChangeStaysPending,
	"a copy forgets the vote":                  mistakeCopyForgetsVote,
	"a copy forgets acknowledged entries":      mistakeCopyForgetsLog,
	"a copy that is out of date is installed":  mistakeCopyOutOfDate,
	"commit counted from an old term":          mistakeCommitsOldTerm,
	"vote not persisted":                       mistakeVoteForgotten,
	"quiet leader answers without asking":      mistakeQuietReads,
	"rests though it is behind":                mistakeRestsBehind,
	"ForgetLeader left out":                    mistakeLeaderNotForgotten,
	"a list loses one group":                   mistakeListLosesOne,
	"who is back isn't brought up":             mistakeNotBroughtUp,
	"a batch loses one group":                  mistakeBatchLosesOne,
	"a lost commit notice isn't made up for":   mistakeNoticeNotResent,
	"a proposal forwarded":                     mistakeForwards,
}

// Plant plants a mistake.
func Plant(c *Core, m mistake) {
	c.mistakes |= m
	c.cfg.mistakes |= m
}

// PlantBatcher plants a mistake of batching.
func PlantBatcher(b *HeartbeatBatcher, m mistake) { b.mistakes |= m }

// PlantCopy plants a mistake in the install of a copy.
func PlantCopy(in *CopyInstall, m mistake) { in.mistakes |= m }
