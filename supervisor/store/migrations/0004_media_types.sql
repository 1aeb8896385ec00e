-- What the bytes of an attachment are. Null: those of a message that is not UTF-8.
ALTER TABLE attachments ADD COLUMN media_type TEXT;
