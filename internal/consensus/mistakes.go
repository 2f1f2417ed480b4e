package consensus

// mistake is a fault that a test can plant in a Core when the package is built with the tag planted, to show that the
// checks of the simulated cluster can fail. Without the tag planted() is false and the branches are compiled away.
type mistake uint32

const (
	mistakeVoteRequestEarly mistake = 1 << iota
	mistakeAnswerEarly
	mistakePromiseNotInVote
	mistakePromiseNotDurable
	mistakeCloseOnMinority
	mistakeCloseBeforeOwnTerm
	mistakePromiseAfterTerm
	mistakeFloorForgotten
	mistakeReadWithoutRound
	mistakeCountsItselfEarly
	mistakeLeadsOn
	mistakeCutsCounted
	mistakeCutsInherited
	mistakeAsksFirst
	mistakeBatchLosesOne
	mistakeNoticeNotResent
	mistakeForwards
	mistakeLearnerVotes
	mistakeConfigBeforeRestart
	mistakeChangeBeforeOwnTerm
	mistakePromotesEarly
	mistakeQuietReads
	mistakeRestsBehind
	mistakeLeaderNotForgotten
	mistakeListLosesOne
	mistakeNotBroughtUp
	mistakeVoteForgotten
	mistakeChangeStaysPending
	mistakeCopyForgetsVote
	mistakeCopyForgetsLog
	mistakeCopyOutOfDate
)
