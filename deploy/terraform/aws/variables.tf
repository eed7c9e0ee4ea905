variable "name" {
  description = "What the machines are called: name-0, name-1 and so on."
  type        = string
}

variable "machine_type" {
  description = "The type of every machine."
  type        = string
  default     = ""
}

variable "image" {
  description = "The image that machines start from: an id (ami-...), or the first part of a name."
  type        = string
  default     = ""
}

variable "subnet" {
  description = "Their network."
  type        = string
}

variable "machines" {
  description = "Every machine, as `evenfall plan deploy` wrote them."
  type = list(object({
    index     = number
    name      = string
    address   = string
    feed_name = string
    feed_role = string
  }))
}

variable "settings_dir" {
  description = "The directory that `evenfall plan deploy` wrote."
  type        = string
}

variable "region" {
  description = "The region of all machines."
  type        = string
  default     = "us-east-1"
}

variable "zone" {
  description = "The availability zone of all machines."
  type        = string
  default     = "us-east-1a"
}

variable "key_parameter" {
  description = "Name of the SSM SecureString that holds the shared key, 64 hexadecimal digits."
  type        = string
  default     = "/evenfall/key"
}

variable "admin_ranges" {
  description = "From where metrics may be read and plans be made, besides the machines themselves."
  type        = list(string)
  default     = []
}

variable "start_feed" {
  description = "Whether the feed is started beside the agents, every machine in its role."
  type        = bool
  default     = false
}

variable "kms_key_arn" {
  description = "The customer key that seals the parameter; empty for the key of the account."
  type        = string
  default     = ""
}
