"""The lengths of stored words, in characters: columns and checks before any SQL share them."""

NAME_LENGTH = 255
QUEUE_LENGTH = 100
WORKER_LENGTH = 255
ACTOR_LENGTH = 255
TAG_KEY_LENGTH = 50
TAG_VALUE_LENGTH = 100
MARK_LENGTH = 100
