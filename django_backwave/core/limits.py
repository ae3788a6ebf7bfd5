"""The lengths of stored words, in characters: columns and checks before any SQL share them."""

NAME_LENGTH = 255
QUEUE_LENGTH = 100
WORKER_LENGTH = 255
ACTOR_LENGTH = 255
TAG_KEY_LENGTH = 50
TAG_VALUE_LENGTH = 100
MARK_LENGTH = 100

#: Tags that an enqueue, and that an attempt may give; and how many of a job's are kept.
MOST_TAGS, KEPT_TAGS = 50, 100

PROGRESS_MESSAGE_LENGTH = 200
PROGRESS_MOST = 10**15

#: Bytes of JSON.
HEADERS_SIZE = 4 * 1024
